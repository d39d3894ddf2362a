"""Keys and values of many sequences in numbered slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import numpy as np

from . import _native
from ._arrays import count, from_numpy, is_tensor, numbers, to_numpy, whole
from ._cache import checked_texts, option_text
from ._native import TqkvError
from ._storage import rope_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ._arrays import Array, Either, Numbers
    from ._storage import Rope


class SlotCache:
    """A compressed KV cache of many sequences, for engines that place tokens themselves.

    An engine with continuous batching keeps the tokens of all sequences in one array of slots. It decides which slot a token gets, which
    slots a query sees, and when a slot is free again. A cache of one sequence whose tokens come in order is `KvCache`.

    `slots` is the number of slots of each stream. One stream is right for most engines, because all sequences share its slots; streams
    have means, maps and exact windows of their own, and slots are counted over all of them. `kv` and the options are those of `KvCache`,
    less the ones that need tokens in order, which are refused by name. A program writes the tokens of a step and attends, layer by layer.

    >>> import numpy as np, tqkv
    >>> cache = tqkv.SlotCache(num_layers=1, num_heads=4, num_kv_heads=2, head_dim=64, kv="t4,t2 hot=16", slots=1024)
    >>> k, v = np.random.default_rng(0).standard_normal((2, 3, 2, 64), dtype=np.float32)
    >>> cache.write(0, [7, 8, 500], [0, 1, 0], k, v)  # two tokens of one sequence and one of another
    >>> mask = cache.mask()
    >>> mask.causal([7, 8])
    >>> mask.causal([500])
    >>> cache.attend(0, np.ones((2, 4, 64), np.float32), mask).shape
    (2, 4, 64)
    >>> cache.forget([500])  # the second sequence has ended
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv: str = "s4",
        *,
        slots: int,
        streams: int = 1,
        **options: Any,
    ) -> None:
        shape = {"layers": num_layers, "heads": num_heads, "kv-heads": num_kv_heads, "head-dim": head_dim}
        texts = checked_texts([option_text(shape.items()), kv] + ([option_text(options.items())] if options else []))
        self._native = _native.Slots(texts, count("slots", slots), count("streams", streams))

    @property
    def spec(self) -> str:
        """The shape and the options as one text, the instruction set included."""
        return self._native.spec()

    @property
    def slots(self) -> int:
        """Number of slots of each stream."""
        return self._native.slots()

    @property
    def streams(self) -> int:
        """Number of streams."""
        return self._native.streams()

    @property
    def allocated_bytes(self) -> int:
        """Bytes that keys and values of all layers take, and all that is kept with them."""
        return self._native.allocated_bytes()

    def mask(self, stream: int = 0) -> SlotMask:
        """A mask without queries for one stream, whose slots it counts from the first one of that stream. It is made once for a step and
        serves all layers. A query takes two bytes per slot of the stream."""
        return SlotMask(self._native.mask(count("stream", stream)))

    def write(self, layer: int, slots: Numbers, positions: Numbers, k: Either, v: Either) -> None:
        """Writes tokens to slots of a layer. `k` is `[tokens, num_kv_heads, head_dim]`, after RoPE, and `v` is `[tokens, num_kv_heads,
        value_dim]`. `positions` count from 0 in each sequence, and the first ones (`sinks=`) stay f16. What the slots held before is
        gone."""
        self._native.write(count("layer", layer), numbers("slots", slots), numbers("positions", positions), to_numpy(k), to_numpy(v))

    def attend(self, layer: int, q: Array, mask: SlotMask) -> Array:
        """Attends in a layer with the queries of a mask, in its order: `q` is `[queries, num_heads, head_dim]`, the result is `[queries,
        num_heads, value_dim]`. A query that sees no slot gets zeros. Then rows that are older than the newest `hot=` writes of their
        stream are encoded."""
        if not isinstance(mask, SlotMask):
            raise TqkvError(f"mask of the type {type(mask).__name__} is not valid: expected what mask() of the cache makes")
        return from_numpy(self._native.attend(count("layer", layer), to_numpy(q), mask._native), q)

    def encode(self, layer: int) -> None:
        """Encodes the rows of a layer that are older than the newest `hot=` writes of their stream. `attend` does so by itself; a program
        that writes a long prompt without attending saves memory by it."""
        self._native.encode(count("layer", layer))

    def copy(self, source: Numbers, target: Numbers) -> None:
        """Copies slots in all layers, `source[i]` to `target[i]`, in that order. Codes are copied as they are. Sequences of one stream share
        a prefix without a copy, because several queries may see one slot."""
        self._native.copy(numbers("source", source), numbers("target", target))

    def shift(self, layer: int, slots: Numbers, positions: int, rope: Rope) -> None:
        """Moves tokens of a layer by a number of positions, back if it is negative: those after a part that was removed, or a chunk that is
        used again at another place. `rope` tells how positions turn the keys of the layer. Codes stay as they are, because attention turns
        queries back instead, so that any number of shifts adds no error of the codec. A slot that is given twice moves once."""
        self._native.shift(count("layer", layer), numbers("slots", slots), whole("positions", positions), rope_of(rope))

    def forget(self, slots: Numbers) -> None:
        """Empties slots in all layers, and frees their memory. A stream whose slots are all empty starts anew."""
        self._native.forget(numbers("slots", slots))

    def clear(self) -> None:
        """Empties all slots."""
        self._native.clear()

    def read(self, layer: int, slots: Numbers) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
        """Keys `[n, num_kv_heads, head_dim]` and values `[n, num_kv_heads, value_dim]` of slots of a layer, as for a saved state. Exact rows
        are the ones that were written, codes are decoded, and empty slots are zeros."""
        return self._native.read(count("layer", layer), numbers("slots", slots))

    def restore(self, layer: int, slots: Numbers, positions: Numbers, k: Either, v: Either) -> None:
        """Writes rows that `read` gave to slots of a layer, which may be other slots or those of another cache. Decoded rows become the same
        codes again in a stream that has no codes yet, except for keys with a map."""
        self._native.restore(count("layer", layer), numbers("slots", slots), numbers("positions", positions), to_numpy(k), to_numpy(v))


class SlotMask:
    """Which slots each query of a step sees. `SlotCache.mask` makes it."""

    def __init__(self, native: _native.SlotMask) -> None:
        if not isinstance(native, _native.SlotMask):
            raise TqkvError("a mask is made by SlotCache.mask()")
        self._native = native

    def __len__(self) -> int:
        """Number of queries."""
        return len(self._native)

    def causal(self, slots: Numbers, queries: int = 1) -> None:
        """Adds queries of the newest `queries` tokens of a sequence: 1 for a step, all tokens for a prompt. `slots` are those of all tokens
        of the sequence, in order, a shared prefix first. Each query sees the slots up to that of its own token."""
        self._native.causal(numbers("slots", slots), count("queries", queries))

    def see(self, slots: Numbers, biases: Either | Sequence[float] | None = None) -> None:
        """Adds one query that sees these slots and no others. `biases` has a number for each slot that is added to its logit (ALiBi, for
        example); -inf hides the slot."""
        if biases is not None and not is_tensor(biases):
            try:
                biases = np.asarray(biases, np.float32)
            except (TypeError, ValueError):
                raise TqkvError(f"biases of the type {type(biases).__name__} are not valid: expected numbers") from None
        self._native.see(numbers("slots", slots), None if biases is None else to_numpy(biases))

    def clear(self) -> None:
        """Removes all queries, and keeps the memory for the next step."""
        self._native.clear()
