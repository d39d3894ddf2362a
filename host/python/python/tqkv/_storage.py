"""Keys and values of tokens that leave fast memory, at about one bit per value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from ._arrays import dtype_name, to_numpy, writable
from ._native import Basis, TqkvError

if TYPE_CHECKING:
    from ._arrays import DType, Either

__all__ = ["Basis", "Learner", "Rope", "Storage"]

EXACT = 4
"""Tokens at the start of a text that stay exact."""
MOST = 256
"""The most tokens of a chunk."""


@dataclass(frozen=True)
class Rope:
    """How positions turn keys. Pairs are coordinates half of the rotated ones apart ("half"), neighbours ("interleaved"), or "none".
    There is one frequency per pair, after any scaling."""

    frequencies: tuple[float, ...] = ()
    kind: str = "half"

    @classmethod
    def of(cls, theta: float, rotated: int, kind: str = "half") -> Rope:
        """A RoPE with unscaled frequencies: `theta` to the power -2i / rotated."""
        return cls(tuple(theta ** (-2 * i / rotated) for i in range(rotated // 2)), kind)


class Learner:
    """Gathers the sums for a basis from the first few thousand tokens that pass. `freeze` makes the basis.

    A basis holds second moments of keys and values: keep one per tenant, or learn it from public text."""

    def __init__(self, layers: int, heads: int, head_dim: int, rope: Rope, shared_layers: int = 1) -> None:
        """`shared_layers` consecutive layers share one basis. 4 needs the fewest bits, with 4 times the file and the time."""
        counts = layers, heads, head_dim, head_dim
        self._native = _native.Learner(counts, rope.kind, list(rope.frequencies), shared_layers)

    def learn(self, k: Either, v: Either, first_position: int = 0) -> None:
        """Learns from keys, after RoPE, and values `[layers, tokens, heads, head_dim]` at consecutive positions."""
        self._native.learn(to_numpy(k), to_numpy(v), first_position)

    def freeze(self, model: str) -> Basis:
        """Makes the basis of the tokens seen so far, for the model of this name."""
        return self._native.freeze(model)

    @property
    def tokens(self) -> int:
        return self._native.tokens


class Storage:
    """Encodes chunks of up to 256 tokens to bytes, and decodes them.

    >>> import numpy as np, tqkv
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.standard_normal((1024, 64), dtype=np.float32)
    >>> both = (hidden @ rng.standard_normal((64, 2 * 4 * 64), dtype=np.float32)).reshape(1024, 2, 1, 4, 64)
    >>> k, v = np.ascontiguousarray(both.transpose(1, 2, 0, 3, 4))  # layers, tokens, heads, head_dim
    >>> learner = tqkv.Learner(layers=1, heads=4, head_dim=64, rope=tqkv.Rope(kind="none"))
    >>> learner.learn(k, v)
    >>> storage = tqkv.Storage(learner.freeze("mine"))
    >>> chunk = storage.encode(k[:, 512:768], v[:, 512:768], budget=1.0, first_position=512)
    >>> round(2 * k[:, 512:768].size * 2 / len(chunk), 1)
    15.9
    >>> k2, v2 = np.zeros((2, 1, 256, 4, 64), np.float32)
    >>> storage.decode(chunk, k2, v2)
    >>> bool(((k2 - k[:, 512:768]) ** 2).mean() < 0.03 * (k**2).mean())
    True
    """

    def __init__(self, basis: Basis) -> None:
        self._native = _native.Storage.with_basis(basis)

    @classmethod
    def without_basis(cls, layers: int, heads: int, head_dim: int, rope: Rope) -> Storage:
        """Works from the first token on, and takes about twice the bits."""
        self = cls.__new__(cls)
        counts = layers, heads, head_dim, head_dim
        self._native = _native.Storage.without(counts, rope.kind, list(rope.frequencies))
        return self

    def size(self, tokens: int, budget: float, dtype: DType = "bfloat16", exact: int = 0) -> int:
        """Bytes of a chunk of all layers. They do not depend on the values."""
        return self._native.size(tokens, exact, dtype_name(dtype), budget)

    def locate(self, k: Either, end: int = 1 << 17) -> int:
        """The most likely position of the first token: a multiple of the number of tokens, below `end`."""
        k = _keys(k)
        return self._native.locate(k, k.shape[1], end)

    def encode(
        self,
        k: Either,
        v: Either,
        budget: float,
        first_position: int = 0,
        exact: int | None = None,
        name: bytes = bytes(8),
    ) -> np.ndarray:
        """Encodes keys, after RoPE, and values `[layers, tokens, heads, head_dim]` at `budget` bits per value. The first `exact` tokens
        stay exact. By default these are the tokens at the first four positions."""
        k, v = _keys(k), to_numpy(v)
        if exact is None:
            exact = min(max(EXACT - first_position, 0), k.shape[1])
        return self._native.encode(k, v, k.shape[1], exact, first_position, name, budget)

    def decode(self, chunk: bytes | np.ndarray, k: Either, v: Either) -> None:
        """Decodes a chunk into `k` and `v`, which are contiguous and of the encoded shape."""
        keys, values = writable(k), writable(v)
        if keys is None or values is None:
            raise TqkvError("k or v None is not valid: expected arrays or tensors to write to")
        name = "bfloat16" if keys.dtype == np.uint16 else keys.dtype.name
        self._native.decode(np.frombuffer(chunk, np.uint8), keys, values, name)

    def peek(self, data: bytes | np.ndarray) -> tuple[int, int, int, bytes]:
        """Bytes, tokens, first position and name of the chunk at the start of `data`."""
        size, tokens, first, name = self._native.peek(np.frombuffer(data, np.uint8))
        return size, tokens, first, bytes(name)


def _keys(k: Either) -> np.ndarray:
    k = to_numpy(k)
    if k.ndim != 4:
        raise TqkvError(f"k of the shape {list(k.shape)} is not valid: expected [layers, tokens, heads, head_dim]")
    return k


def load(path: str | os.PathLike[str]) -> Storage:
    """The storage of the basis in a file."""
    return Storage(Basis.load(path))
