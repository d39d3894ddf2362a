"""Keys and values of tokens that leave fast memory, at about one bit per value."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from ._arrays import count, dtype_name, octet_array, octets, real, to_numpy, words, writable
from ._native import Basis, TqkvError

if TYPE_CHECKING:
    from ._arrays import DType, Either

__all__ = ["Basis", "Follower", "Generations", "Learner", "Rope", "Storage"]

EXACT = 4
"""Tokens at the start of a text that stay exact."""
MOST = 256
"""The most tokens of a chunk."""


@dataclass(frozen=True)
class Rope:
    """How positions turn keys. Pairs are coordinates half of the rotated ones apart ("half"), neighbours ("interleaved"), or "none".
    There is one frequency per pair, after any scaling. `first` is the first coordinate of a head that turns."""

    frequencies: tuple[float, ...] = ()
    kind: str = "half"
    first: int = 0

    @classmethod
    def of(cls, theta: float, rotated: int, kind: str = "half", first: int = 0) -> Rope:
        """A RoPE with unscaled frequencies: `theta` to the power -2i / rotated."""
        return cls(tuple(theta ** (-2 * i / rotated) for i in range(rotated // 2)), kind, first)


class Learner:
    """Gathers the sums for a basis from the first few thousand tokens that pass. `freeze` makes the basis.

    A basis holds second moments of keys and values: keep one per tenant, or learn it from public text."""

    def __init__(self, layers: int, heads: int, head_dim: int, rope: Rope, shared_layers: int = 1) -> None:
        """`shared_layers` consecutive layers share one basis. 4 needs the fewest bits, with 4 times the file and the time."""
        self._native = _native.Learner(_shape(layers, heads, head_dim), rope_of(rope), _shared(shared_layers))

    def learn(self, k: Either, v: Either, first_position: int = 0) -> None:
        """Learns from keys, after RoPE, and values `[layers, tokens, heads, head_dim]` at consecutive positions."""
        self._native.learn(to_numpy(k), to_numpy(v), count("first_position", first_position))

    def freeze(self, model: str) -> Basis:
        """Makes the basis of the tokens seen so far, for the model of this name."""
        return self._native.freeze(words("model", model))

    @property
    def tokens(self) -> int:
        """Number of tokens learned from."""
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
    def _of(cls, native: _native.Storage) -> Storage:
        self = cls.__new__(cls)
        self._native = native
        return self

    @classmethod
    def without_basis(cls, layers: int, heads: int, head_dim: int, rope: Rope) -> Storage:
        """Works from the first token on, and takes about twice the bits."""
        return cls._of(_native.Storage.without(_shape(layers, heads, head_dim), rope_of(rope)))

    def size(self, tokens: int, budget: float, dtype: DType = "bfloat16", exact: int = 0) -> int:
        """Bytes of a chunk of all layers. They do not depend on the values."""
        return self._native.size(count("tokens", tokens), count("exact", exact), dtype_name(dtype), real("budget", budget))

    def locate(self, k: Either, end: int = 1 << 17) -> int:
        """The most likely position of the first token: a multiple of the number of tokens, below `end`."""
        k = _keys(k)
        return self._native.locate(k, k.shape[1], count("end", end))

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
        return self._native.encode(k, v, *_span(k, exact, first_position, name), real("budget", budget))

    def decode(self, chunk: bytes | np.ndarray, k: Either, v: Either) -> None:
        """Decodes a chunk into `k` and `v`, which are contiguous and of the encoded shape."""
        keys, values = writable(k), writable(v)
        if keys is None or values is None:
            raise TqkvError("k or v None is not valid: expected arrays or tensors to write to")
        name = "bfloat16" if keys.dtype == np.uint16 else keys.dtype.name
        self._native.decode(octet_array("chunk", chunk), keys, values, name)

    def peek(self, data: bytes | np.ndarray) -> tuple[int, int, int, bytes]:
        """Bytes, tokens, first position and name of the chunk at the start of `data`."""
        size, tokens, first, name = self._native.peek(octet_array("data", data))
        return size, tokens, first, bytes(name)


class Follower:
    """Encodes chunks, and learns from them. Where the text changes, it makes a new basis: the next generation.

    Chunks name their basis. So a new one is added to the `Generations` before the chunk that came with it is stored.

    >>> import numpy as np, tempfile, tqkv
    >>> rng, rope = np.random.default_rng(0), tqkv.Rope(kind="none")
    >>> hidden = rng.standard_normal((2048, 64), dtype=np.float32)
    >>> both = (hidden @ rng.standard_normal((64, 2 * 4 * 64), dtype=np.float32)).reshape(2048, 2, 1, 4, 64)
    >>> k, v = np.ascontiguousarray(both.transpose(1, 2, 0, 3, 4))  # layers, tokens, heads, head_dim
    >>> bases = tqkv.Generations(tempfile.mkdtemp(), "mine", layers=1, heads=4, head_dim=64, rope=rope)
    >>> follower, chunks = tqkv.Follower("mine", bases.newest(), budget=1.0), []
    >>> for at in range(0, 2048, 256):
    ...     chunk, basis = follower.encode(k[:, at : at + 256], v[:, at : at + 256], first_position=at)
    ...     if basis is not None:
    ...         bases.add(basis)
    ...     chunks.append(chunk)
    >>> k2, v2 = np.zeros((2, 1, 256, 4, 64), np.float32)
    >>> bases.of(chunks[-1]).decode(chunks[-1], k2, v2)
    >>> bool(((k2 - k[:, -256:]) ** 2).mean() < 0.03 * (k**2).mean())
    True
    """

    def __init__(self, model: str, storage: Storage, budget: float, shared_layers: int = 1) -> None:
        """Follows the text from the basis of `storage`, or from none, at `budget` bits per value. New bases are for the model of
        this name, and `shared_layers` consecutive layers share one."""
        self._native = _native.Follower(words("model", model), storage._native, real("budget", budget), _shared(shared_layers))

    @property
    def storage(self) -> Storage:
        """The storage of the present generation."""
        return Storage._of(self._native.storage)

    def encode(
        self,
        k: Either,
        v: Either,
        first_position: int = 0,
        exact: int | None = None,
        name: bytes = bytes(8),
    ) -> tuple[np.ndarray, Basis | None]:
        """Encodes keys and values of all layers as `Storage.encode` does, and learns from them. Returns the chunk, and the new basis
        if the chunk is the first that needs it."""
        k, v = _keys(k), to_numpy(v)
        return self._native.encode(k, v, *_span(k, exact, first_position, name))


class Generations:
    """A folder of bases of one model, a file for each. Older ones stay, because chunks name them."""

    def __init__(
        self, folder: str | os.PathLike[str], model: str, layers: int, heads: int, head_dim: int, rope: Rope
    ) -> None:
        """Opens a folder, and makes it if it does not exist."""
        shape = _shape(layers, heads, head_dim)
        self._native = _native.Generations(folder, words("model", model), shape, rope_of(rope))

    def add(self, basis: Basis) -> None:
        """Writes a basis, which is the newest then."""
        self._native.add(basis)

    def newest(self) -> Storage:
        """The storage of the newest basis, or without one."""
        return Storage._of(self._native.newest())

    def of(self, chunk: bytes | np.ndarray) -> Storage:
        """The storage that decodes a chunk: of the basis that the chunk names."""
        return Storage._of(self._native.of(octet_array("chunk", chunk)))


def _shape(layers: int, heads: int, head_dim: int) -> tuple[int, int, int, int]:
    """The shape of keys and of values, whose head dims are the same."""
    dim = count("head_dim", head_dim)
    return count("layers", layers), count("heads", heads), dim, dim


def _shared(layers: int) -> int:
    if count("shared_layers", layers) >= 1 << 16:
        raise TqkvError(f"shared_layers {layers} is not valid: expected a number below 65536")
    return layers


def rope_of(rope: Rope) -> tuple[str, int, list[float]]:
    """The arguments of the native module for a RoPE."""
    if not isinstance(rope, Rope):
        raise TqkvError(f'rope of the type {type(rope).__name__} is not valid: expected a tqkv.Rope, for no RoPE tqkv.Rope(kind="none")')
    frequencies = [real("frequency of a RoPE", frequency) for frequency in rope.frequencies]
    return words("kind of a RoPE", rope.kind), count("first coordinate of a RoPE", rope.first), frequencies


def _span(k: np.ndarray, exact: int | None, first_position: int, name: bytes) -> tuple[int, int, int, bytes]:
    """The tokens of a chunk: how many, how many of them exact (by default those of the first positions), the first position, the name."""
    tokens, first = k.shape[1], count("first_position", first_position)
    if len(octets("name", name)) != 8:
        raise TqkvError(f"name of {len(name)} bytes is not valid: expected 8")
    exact = min(max(EXACT - first, 0), tokens) if exact is None else count("exact", exact)
    return tokens, exact, first, octets("name", name)


def _keys(k: Either) -> np.ndarray:
    k = to_numpy(k)
    if k.ndim != 4:
        raise TqkvError(f"k of the shape {list(k.shape)} is not valid: expected [layers, tokens, heads, head_dim]")
    return k


def load(path: str | os.PathLike[str]) -> Storage:
    """The storage of the basis in a file."""
    return Storage(Basis.load(path))
