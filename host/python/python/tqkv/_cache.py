"""The KV cache of one sequence."""

from __future__ import annotations

import os
from typing import Any, Sequence

import numpy as np

from . import _native
from ._arrays import dtype_name, from_numpy, to_numpy


class KvCache:
    """A compressed KV cache of one sequence, and attention over it.

    `kv` names the codecs of keys and values: "t4,t3", or one for both. "f16" compresses nothing. The first `sinks` tokens and the
    newest `hot` tokens stay f16. Keys, values and queries are arrays or tensors of float32, float16 or bfloat16. Results are
    float32. Any number of threads may use one cache: calls that change it wait for each other.

    Further options, which the Rust library describes (`tqkv::cache::CacheSpec`):

    * `num_heads`: number of query heads, if they share KV heads
    * `value_dim`: width of values, if it differs from the width of keys
    * `layers`: codecs per layer, in place of `kv`
    * `windows`: per layer, the number of newest tokens that queries see in the model, without sinks, or None for all
    * `sliding_window`: for all layers, the number of newest tokens that queries see besides the sinks; older ones are evicted
    * `cold`: tiers `(after, kv)` of older tokens in narrower codecs
    * `spill`: the last tier `(after, folder)`, in a file
    * `centring`: "auto", "on" or "off", for keys
    * `arithmetic`: "int8" or "f32", for generated tokens
    * `seed`, `scale_mode`, `effort`: options of the codecs, as in `Codec`
    * `scale`, `soft_cap`, `sink_logits` (`[num_layers, num_heads]`): options of the logits
    * `sparse_values`: values are skipped if their weight is below this share of the largest weight
    * `max_bytes`: the most bytes that the cache and its forks hold together

    >>> import numpy as np, tqkv
    >>> cache = tqkv.KvCache(num_layers=1, num_kv_heads=2, head_dim=64, num_heads=4, kv="t4,t3")
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
        num_kv_heads: int,
        head_dim: int,
        kv: str = "s4",
        *,
        num_heads: int | None = None,
        value_dim: int | None = None,
        sinks: int = 4,
        hot: int = 64,
        layers: Sequence[str] | None = None,
        windows: Sequence[int | None] | None = None,
        sliding_window: int | None = None,
        cold: Sequence[tuple[int, str]] = (),
        spill: tuple[int, str | os.PathLike[str]] | None = None,
        centring: str = "auto",
        arithmetic: str = "int8",
        seed: int = 42,
        scale_mode: str = "unbiased",
        effort: str = "default",
        scale: float | None = None,
        soft_cap: float | None = None,
        sink_logits: Any = (),
        sparse_values: float = 0.0,
        max_bytes: int | None = None,
    ) -> None:
        spec = {name: value for name, value in locals().items() if name != "self"}
        spec["num_heads"] = num_kv_heads if num_heads is None else num_heads
        spec["value_dim"] = head_dim if value_dim is None else value_dim
        spec["cold"] = list(cold)
        spec["sink_logits"] = np.asarray(sink_logits, np.float32).ravel().tolist()
        self._native = _native.Cache(spec)

    def __len__(self) -> int:
        """Number of tokens in the first layer."""
        return len(self._native)

    def append(self, layer: int, k: Any, v: Any) -> None:
        """Appends tokens to a layer. `k` is `[tokens, num_kv_heads, head_dim]`, after RoPE; `v` is `[tokens, num_kv_heads,
        value_dim]`."""
        self._native.append(layer, to_numpy(k), to_numpy(v))

    def attend(self, layer: int, q: Any) -> Any:
        """Attends from the newest position. `q` is `[num_heads, head_dim]`, the result is `[num_heads, value_dim]`."""
        return from_numpy(self._native.attend(layer, to_numpy(q)), q)

    def attend_prefill(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Appends a chunk and attends causally with each of its tokens. `q` is `[tokens, num_heads, head_dim]`, the result is
        `[tokens, num_heads, value_dim]`. The lengths of chunks change results only by rounding."""
        out = self._native.attend_prefill(layer, to_numpy(q), to_numpy(k), to_numpy(v))
        return from_numpy(out, q)

    def scores(self, layer: int, head: int, q: Any) -> Any:
        """Logits of one query `[head_dim]` of a query head over every token that the newest position sees, oldest first."""
        return from_numpy(self._native.scores(layer, head, to_numpy(q)), q)

    def keys(
        self, layer: int, start: int = 0, stop: int | None = None, dtype: Any = "float32"
    ) -> np.ndarray:
        """Decoded keys of tokens, `[num_kv_heads, tokens, head_dim]`. Attention does not need them."""
        stop = len(self) if stop is None else stop
        return self._native.keys(layer, start, stop, dtype_name(dtype))

    def values(
        self, layer: int, start: int = 0, stop: int | None = None, dtype: Any = "float32"
    ) -> np.ndarray:
        """Decoded values of tokens, `[num_kv_heads, tokens, value_dim]`."""
        stop = len(self) if stop is None else stop
        return self._native.values(layer, start, stop, dtype_name(dtype))

    def truncate(self, length: int) -> None:
        """Drops the tokens from `length` on, in every layer: the rollback of speculative decoding."""
        self._native.truncate(length)

    def fork(self) -> KvCache:
        """Another cache with the same tokens. The two share pages until one of them writes."""
        cache = KvCache.__new__(KvCache)
        cache._native = self._native.fork()
        return cache

    def reset(self) -> None:
        """Empties the cache."""
        self._native.reset()

    def stats(self) -> dict[str, Any]:
        """Tokens per tier (of the first KV head), and allocated bytes (of the whole cache)."""
        return self._native.stats()

    def head_stats(self) -> list[dict[str, Any]]:
        """Relative squared errors of each KV head of each layer so far, measured on a sample."""
        return self._native.head_stats()

    def snapshot(self) -> bytes:
        """The whole state. A cache with the same options continues from it with the same bits after `restore`."""
        return self._native.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """Restores the state of a snapshot. A damaged snapshot, or one of another cache, changes nothing."""
        self._native.restore(snapshot)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a snapshot to a file, which appears whole or not at all."""
        self._native.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Restores a snapshot from a file."""
        self._native.load(path)
