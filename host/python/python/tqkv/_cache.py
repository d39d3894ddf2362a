"""The KV cache of one sequence."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any, Iterable, Sequence

import numpy as np

from . import _native
from ._arrays import count, dtype_name, from_numpy, numbers, octets, to_numpy
from ._native import TqkvError

if TYPE_CHECKING:
    from ._arrays import Array, DType, Either, Numbers


class KvCache:
    """A compressed KV cache of one sequence, and attention over it.

    `kv` says how tokens are kept, in the words of every interface of tqkv (docs/options.md): codecs or a preset ("t4,t3", "s4",
    "compact"; "f16" compresses nothing), and options, as in "t4,t2 hot=32 last:i8 tier=4096:t2". Without more words the first 4 and
    the newest 64 tokens stay f16. Keys, values and queries are arrays or tensors of float32, float16 or bfloat16; results are
    float32. Any number of threads may use one cache: calls that change it wait for each other.

    Options may be arguments as well, which have the last word:
    `value_dim`: of values that are not as wide as keys;
    `layers`: codecs of each layer, in the place of `kv`;
    `windows`: for each layer, how many newest tokens its queries see in the model, without sinks, or None for all;
    `cold`: tiers `(after, kv)` of older tokens in narrower codecs; `spill`: `(after, folder)`, the last tier, in a file;
    `sink_logits`: learned sinks, `[num_layers, num_heads]`;
    `max_bytes`: what the cache and its forks may hold;
    any other word with `_` for `-`: `hot`, `sinks`, `sliding_window`, `centring`, `seed`, `effort`, `scale`, `soft_cap`, ..

    >>> import numpy as np, tqkv
    >>> cache = tqkv.KvCache(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=64, kv="t4,t3")
    >>> k, v = np.random.default_rng(0).standard_normal((2, 500, 2, 64), dtype=np.float32)
    >>> cache.append(0, k, v)
    >>> len(cache), cache.attend(0, k[:4, 0]).shape
    (500, (4, 64))
    >>> cache.stats()["warm"] > 400
    True
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv: str = "s4",
        *,
        value_dim: int | None = None,
        layers: Sequence[str] | None = None,
        windows: Sequence[int | None] | None = None,
        cold: Sequence[tuple[int, str]] | None = None,
        spill: tuple[int, str | os.PathLike[str]] | None = None,
        sink_logits: Either | Sequence[Sequence[float]] | None = None,
        max_bytes: int | None = None,
        **options: Any,
    ) -> None:
        shape = {"layers": num_layers, "heads": num_heads, "kv-heads": num_kv_heads, "head-dim": head_dim}
        words = list(options.items())
        try:
            if value_dim is not None:
                words.append(("value-dim", value_dim))
            if layers is not None:
                words.append(("layer-kv", "each:" + "/".join(layers)))
            if windows is not None:
                words.append(("kinds", "/".join("full" if window is None else str(window) for window in windows)))
            if cold is not None:
                words += [("tier", f"{after}:{codecs}") for after, codecs in cold]
            if spill is not None:
                words.append(("spill", f"{spill[0]}:{os.fspath(spill[1])}"))
            if sink_logits is not None:
                logits = np.asarray(sink_logits, np.float32).ravel()
                words.append(("sink-logits", "/".join(map(str, logits)) or "none"))
        except (TypeError, ValueError, IndexError) as error:
            raise TqkvError(f"layers, windows, cold, spill or sink_logits of another form is not valid: {error}: expected help(tqkv.KvCache)") from error
        texts = [option_text(shape.items()), kv, option_text(words)]
        self._hold(_made(texts if words else texts[:2], max_bytes), max_bytes)

    def _hold(self, native: _native.Cache, max_bytes: int | None) -> None:
        self._native, self._max_bytes = native, max_bytes

    @classmethod
    def _of(cls, native: _native.Cache, max_bytes: int | None) -> KvCache:
        cache = cls.__new__(cls)
        cache._hold(native, max_bytes)
        return cache

    @classmethod
    def from_spec(cls, text: str, *, max_bytes: int | None = None) -> KvCache:
        """The cache of a text that has the shape as well: "layers=32 heads=32 kv-heads=8 head-dim=128 t4,t2"."""
        return cls._of(_made([text], max_bytes), max_bytes)

    @classmethod
    def from_snapshot(cls, snapshot: bytes, *, max_bytes: int | None = None) -> KvCache:
        """The cache of a snapshot, with the options of the snapshot. Spilled pages go to a file in the folder for temporary files."""
        return cls._of(_native.Cache.from_snapshot(octets("snapshot", snapshot), _most(max_bytes)), max_bytes)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_bytes: int | None = None) -> KvCache:
        """The cache that `save` wrote, with its options but `max_tokens`, as `from_snapshot` makes it."""
        return cls._of(_native.Cache.load(path, _most(max_bytes)), max_bytes)

    @property
    def spec(self) -> str:
        """The text from which `from_spec` makes such a cache, the instruction set included."""
        return self._native.spec()

    @property
    def layer_codecs(self) -> list[str]:
        """Codecs of each layer: "t4,t3"."""
        return self._native.codecs()

    def __len__(self) -> int:
        """Number of tokens in the first layer."""
        return len(self._native)

    def append(self, layer: int, k: Either, v: Either) -> None:
        """Appends tokens to a layer. `k` is `[tokens, num_kv_heads, head_dim]`, after RoPE; `v` is `[tokens, num_kv_heads,
        value_dim]`."""
        self._native.append(count("layer", layer), to_numpy(k), to_numpy(v))

    def wanted_queries(self, layer: int) -> int:
        """Number of tokens from the end of a layer on whose queries teach a map of keys. 0 for a layer that has its map, or gets none."""
        return self._native.wanted_queries(count("layer", layer))

    def append_with_queries(self, layer: int, q: Array, k: Either, v: Either) -> None:
        """The same as `append`, for a program that attends to these tokens itself: `q`, `[tokens, num_heads, head_dim]`, are the queries of
        the first of these tokens. Maps of keys (`map=`) are learnt from queries, so keys that are only appended never get one. Queries past
        `wanted_queries` have no effect."""
        self._native.append_with_queries(count("layer", layer), to_numpy(q), to_numpy(k), to_numpy(v))

    def attend(self, layer: int, q: Array) -> Array:
        """Attends from the newest position. `q` is `[num_heads, head_dim]`, the result is `[num_heads, value_dim]`."""
        return from_numpy(self._native.attend(count("layer", layer), to_numpy(q)), q)

    def attend_selected(self, layer: int, q: Array, tokens: Sequence[Numbers]) -> Array:
        """`attend` over some tokens alone, such as those that an indexer of the model has found. `tokens` has one list per KV head, for
        all query heads that share it: positions from 0 on, ascending and each once."""
        try:
            of_heads = list(tokens)
        except TypeError:
            kind = type(tokens).__name__
            raise TqkvError(f"tokens of the type {kind} are not valid: expected a list of whole numbers for each KV head") from None
        lists = [numbers("tokens", of_head) for of_head in of_heads]
        return from_numpy(self._native.attend_selected(count("layer", layer), to_numpy(q), lists), q)

    def attend_prefill(self, layer: int, q: Array, k: Either, v: Either) -> Array:
        """Appends a chunk and attends causally with each of its tokens. `q` is `[tokens, num_heads, head_dim]`, the result is
        `[tokens, num_heads, value_dim]`. The lengths of chunks change results only by rounding."""
        out = self._native.attend_prefill(count("layer", layer), to_numpy(q), to_numpy(k), to_numpy(v))
        return from_numpy(out, q)

    def scores(self, layer: int, head: int, q: Array) -> Array:
        """Logits of one query `[head_dim]` of a query head over every token that the newest position sees, oldest first."""
        return from_numpy(self._native.scores(count("layer", layer), count("head", head), to_numpy(q)), q)

    def keys(
        self, layer: int, kv_head: int | None = None, start: int = 0, stop: int | None = None, dtype: DType = "float32"
    ) -> np.ndarray:
        """Decoded keys of tokens of a KV head, `[tokens, head_dim]`, or of all of them, `[num_kv_heads, tokens, head_dim]`. Attention does
        not need them."""
        return self._native.keys(*self._tokens(layer, kv_head, start, stop), dtype_name(dtype))

    def values(
        self, layer: int, kv_head: int | None = None, start: int = 0, stop: int | None = None, dtype: DType = "float32"
    ) -> np.ndarray:
        """Decoded values of tokens, as `keys`."""
        return self._native.values(*self._tokens(layer, kv_head, start, stop), dtype_name(dtype))

    def _tokens(self, layer: int, kv_head: int | None, start: int, stop: int | None) -> tuple[int, int | None, int, int]:
        head = None if kv_head is None else count("kv_head", kv_head)
        return count("layer", layer), head, count("start", start), len(self) if stop is None else count("stop", stop)

    def truncate(self, length: int) -> None:
        """Drops the tokens from `length` on, in every layer: the rollback of speculative decoding. A `length` beyond the cache drops
        nothing."""
        self._native.truncate(count("length", length))

    def fork(self) -> KvCache:
        """Another cache with the same tokens. The two share pages until one of them writes. `copy` and `deepcopy` are forks too."""
        return self._of(self._native.fork(), self._max_bytes)

    __copy__ = fork

    def __deepcopy__(self, memo: Any) -> KvCache:
        return self.fork()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a snapshot."""
        return _unpickled, (self.snapshot(), self._max_bytes)

    def reset(self) -> None:
        """Empties the cache."""
        self._native.reset()

    def stats(self) -> dict[str, Any]:
        """Tokens per tier (of the first KV head), and allocated bytes (of the whole cache)."""
        return self._native.stats()

    def head_stats(self) -> list[dict[str, Any]]:
        """Of each KV head of each layer: relative squared errors on a sample so far, and whether its keys have a map."""
        return self._native.head_stats()

    def snapshot(self) -> bytes:
        """The whole state. A cache with the same options continues from it with the same bits after `restore`."""
        return self._native.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Restores the state of a snapshot. A damaged snapshot, or one of another cache, changes nothing."""
        self._native.restore(octets("snapshot", snapshot))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a snapshot to a file, which appears complete or not at all."""
        self._native.save(path)

    def restore_from(self, path: str | os.PathLike[str]) -> None:
        """Restores a snapshot from a file, as `restore` does."""
        self._native.restore_from(path)


def _most(max_bytes: int | None) -> int | None:
    return None if max_bytes is None else count("max_bytes", max_bytes)


def checked_texts(texts: list[str]) -> list[str]:
    """The texts of a spec, which must be texts."""
    for text in texts:
        if not isinstance(text, str):
            raise TqkvError(f"kv {text!r} is not valid: expected a text such as 't4,t3 hot=32'")
    return texts


def _made(texts: list[str], max_bytes: int | None) -> _native.Cache:
    return _native.Cache(checked_texts(texts), _most(max_bytes))


def _unpickled(snapshot: bytes, max_bytes: int | None) -> KvCache:
    return KvCache.from_snapshot(snapshot, max_bytes=max_bytes)


def option_text(options: Iterable[tuple[str, Any]]) -> str:
    """Options as words. `None` leaves an option open."""
    words = ((name.replace("_", "-"), "none" if value is None else value) for name, value in options)
    return " ".join(shlex.quote(f"{name}={value}") for name, value in words)
