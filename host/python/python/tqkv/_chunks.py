"""Parts of a payload as chunks of the storage tier, with a known upper limit of bytes.

Stores do not keep the position of a part in its text, so it is found by the keys. A chunk at the start of a text keeps its first
tokens exactly, and has fewer bits for the others.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Sequence

import numpy as np
import torch

from ._native import TqkvError
from ._storage import EXACT, MOST, Storage, load

MAGIC = b"\x89TQC\r\n\x1a\n"
LEAST = 0.5
"""The fewest bits per value of a chunk."""

_of_basis = lru_cache(maxsize=8)(load)


def storage_of(basis: str) -> Storage:
    """The storage of the basis in a file, which is read once."""
    return _of_basis(basis)


def _runs(tokens: int) -> list[tuple[int, int]]:
    return [(first, min(MOST, tokens - first)) for first in range(0, tokens, MOST)]


def size(storage: Storage, tokens: int, dtype: torch.dtype, budget: float) -> int:
    """The most bytes of a part."""
    return sum(storage.size(count, budget, dtype) for _, count in _runs(tokens))


def encode(storage: Storage, budget: float, keys: torch.Tensor, values: torch.Tensor, name: bytes) -> np.ndarray:
    """Encodes keys and values `[layers, tokens, heads, head_dim]` to a part."""
    chunks: list[np.ndarray] = []
    start = 0
    for first, count in _runs(keys.shape[1]):
        k, v = (x[:, first : first + count].contiguous() for x in (keys, values))
        if first == 0:
            start = storage.locate(k)
        exact, bits = _begin(storage, budget, k) if start + first == 0 else (0, budget)
        chunks.append(storage.encode(k, v, bits, start + first, exact, name))
    return np.concatenate(chunks)


def _begin(storage: Storage, budget: float, k: torch.Tensor) -> tuple[int, float]:
    """Number of exact tokens in a chunk at the start of a text, and bits of the others. The chunk is as large as any other."""
    layers, tokens, heads, dim = k.shape
    per_bit = layers * (tokens - EXACT) * 2 * heads * dim / 8
    most = storage.size(tokens, budget, k.dtype)
    kept = storage.size(EXACT, budget, k.dtype, EXACT) if tokens > EXACT else most
    bits = (most - kept) / per_bit if tokens > EXACT else 0.0
    if bits < LEAST or storage.size(tokens, bits, k.dtype, EXACT) > most:
        return 0, budget
    return EXACT, bits


def decode(
    storage: Storage, data: np.ndarray, axes: Sequence[int], dtype: torch.dtype, name: bytes
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """The bytes, keys and values of the part at the start of `data`."""
    keys, values = torch.empty(2, *axes, dtype=dtype)
    at = 0
    for first, count in _runs(axes[1]):
        size, tokens, _, found = storage.peek(data[at:])
        if found != name:
            raise TqkvError("payload of another name is not valid: expected the name that it is loaded by")
        if tokens != count:
            raise TqkvError(f"payload with a chunk of {tokens} tokens is not valid: expected {count}")
        k, v = torch.empty(2, axes[0], tokens, *axes[2:], dtype=dtype)
        storage.decode(data[at : at + size], k, v)
        keys[:, first : first + tokens], values[:, first : first + tokens] = k, v
        at += size
    return at, keys, values
