"""Saved states of llama.cpp, packed: the same bytes as the command `tqkv session` writes.

A state is what `llama_state_seq_get_data`, `llama_state_seq_save_file` or a slot of llama-server gives.
"""

from __future__ import annotations

import os
from typing import Any, Union

import numpy as np

from . import _native
from ._arrays import count, real, to_numpy, words
from ._native import TqkvError
from ._storage import Storage

Data = Union[bytes, bytearray, memoryview, np.ndarray]
"""Bytes, or an array of uint8."""

__all__ = ["inspect", "pack", "pack_file", "unpack", "unpack_file"]


def _array(data: Data) -> np.ndarray:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return np.frombuffer(data, np.uint8)
    return to_numpy(data)


def _codec(basis: Storage | None) -> _native.Storage | None:
    if basis is not None and not isinstance(basis, Storage):
        raise TqkvError(f"basis of the type {type(basis).__name__} is not valid: expected a tqkv.Storage")
    return None if basis is None else basis._native


def _options(
    kv: str, head_dim: int | None, basis: Storage | None, budget: float
) -> tuple[str, int | None, _native.Storage | None, float]:
    """How a state is packed, as the native module takes it."""
    dim = None if head_dim is None else count("head_dim", head_dim)
    return words("kv", kv), dim, _codec(basis), real("budget", budget)


def pack(
    state: Data, kv: str = "t4", head_dim: int | None = None, basis: Storage | None = None, budget: float = 2.1
) -> np.ndarray:
    """The pack of a state, as uint8. `kv` is one codec, two for keys and values (`t4,t2`), or `exact`. Without `head_dim`, heads of 128
    or 64 are assumed, whichever divides a row. In a `basis` (`Storage(Basis.load(path))`) keys and values take `budget` bits each, and
    `kv` is not read."""
    return _native.pack_session(_array(state), *_options(kv, head_dim, basis, budget))


def unpack(pack: Data, basis: Storage | None = None) -> np.ndarray:
    """The state that a pack holds, as uint8: the same bytes on every machine. A pack that names a basis needs it."""
    return _native.unpack_session(_array(pack), _codec(basis))


def pack_file(
    state: str | os.PathLike[str],
    pack: str | os.PathLike[str],
    kv: str = "t4",
    head_dim: int | None = None,
    basis: Storage | None = None,
    budget: float = 2.1,
) -> None:
    """Packs a file, as `pack` does. The pack appears complete or not at all, and replaces an existing file. Memory does not grow with the state."""
    _native.pack_session_file(state, pack, *_options(kv, head_dim, basis, budget))


def unpack_file(
    pack: str | os.PathLike[str], state: str | os.PathLike[str], basis: Storage | None = None
) -> None:
    """Unpacks a file, which appears complete or not at all. An existing file is replaced."""
    _native.unpack_session_file(pack, state, _codec(basis))


def inspect(source: str | os.PathLike[str] | Data) -> dict[str, Any]:
    """What a state or a pack holds: a path, or its bytes. The checksums of a pack are checked."""
    if isinstance(source, (str, os.PathLike)):
        return _native.inspect_session(source, None)
    return _native.inspect_session(None, _array(source))
