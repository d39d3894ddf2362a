"""Payloads: keys and values of a run of tokens as bytes for the storage layers of serving engines.

Other machines can read them, and SPEC.md describes the bytes. An engine's module passes views of its memory, in any order of axes.
Needs PyTorch.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Sequence

import numpy as np
import torch

from . import _chunks, _native
from ._arrays import count, dtype_name, octet_array, real, words
from ._codec import Codec
from ._native import TqkvError

MAGIC = b"\x89TQP\r\n\x1a\n"
VERSION = 1
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of encoded tensors, in the order of their codes."""

_CODECS = tuple(name for name in Codec.names() if name not in ("m2", "m3"))
"""Codecs of payloads. `m2` and `m3` need a map of the keys, which payloads have not."""

_CENTRED = 1
_HEADER = struct.Struct("<8sHH8s8sHHQ4I8s")
_CRC = struct.Struct("<I")
_MOST_AXES = 5
"""Layers, two axes of tokens, heads and head dim."""

Part = "tuple[torch.Tensor, torch.Tensor]"
"""Keys and values: views with any strides and the same shape `[layers, tokens.., heads, head_dim]`. Axes between layers and heads
count tokens together."""


@lru_cache(maxsize=64)
def _codec(name: str, head_dim: int, seed: int, effort: str) -> Codec:
    return Codec(name, head_dim, seed, effort=effort)


@dataclass(frozen=True)
class Shape:
    """The shape of one part."""

    layers: int
    tokens: int
    heads: int
    head_dim: int

    @classmethod
    def of(cls, axes: Sequence[int]) -> Shape:
        """The shape for the axes of a view."""
        if len(axes) < 4:
            raise TqkvError(f"axes {list(axes)} are not valid: expected layers, tokens, heads and head_dim")
        return cls(axes[0], math.prod(axes[1:-2]), axes[-2], axes[-1])

    @property
    def axes(self) -> tuple[int, int, int, int]:
        return self.layers, self.tokens, self.heads, self.head_dim


@dataclass(frozen=True)
class Header:
    """The header of a part."""

    keys: str
    values: str
    centred: bool
    dtype: torch.dtype
    exact: int
    seed: int
    shape: Shape
    digest: bytes

    def pack(self) -> bytes:
        names = (name.encode("ascii") for name in (self.keys, self.values))
        shape = self.shape
        kinds = DTYPES.index(self.dtype), self.exact
        return _HEADER.pack(MAGIC, VERSION, _CENTRED * self.centred, *names, *kinds, self.seed, *shape.axes, self.digest)

    @classmethod
    def unpack(cls, data: np.ndarray) -> Header:
        """Reads the header at the start of `data`, and refuses bytes that are none."""
        if len(data) < _HEADER.size:
            raise TqkvError(f"payload of {len(data)} bytes is not valid: expected a header of {_HEADER.size} and more")
        magic, version, flags, keys, values, dtype, exact, seed, *axes, digest = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise TqkvError(f"payload that begins with {magic.hex()} is not valid: expected {MAGIC.hex()}")
        if version != VERSION:
            raise TqkvError(f"payload of version {version} is not valid: expected {VERSION}")
        if flags & ~_CENTRED or dtype >= len(DTYPES):
            raise TqkvError(f"payload with flags {flags} and dtype {dtype} is not valid: expected what this reader knows")
        header = cls(_name(keys), _name(values), bool(flags), DTYPES[dtype], exact, seed, Shape(*axes), digest)
        if exact > header.shape.tokens:
            raise TqkvError(f"payload with {exact} exact tokens is not valid: expected at most {header.shape.tokens}, as many as it has")
        header.codecs()
        return header

    def codecs(self, effort: str = "default") -> tuple[Codec, Codec]:
        """Codecs of keys and of values. Refuses unknown ones, and head dims that they do not have. Only encoders use `effort`."""
        keys, values = (_codec(name, self.shape.head_dim, self.seed, effort) for name in (self.keys, self.values))
        return keys, values

    def sections(self) -> list[tuple[int, ...]]:
        """Shapes in bytes of the sections between header and CRC: exact keys, exact values, means of the keys, blocks of keys, blocks
        of values."""
        shape, row = self.shape, self.shape.heads * self.shape.head_dim
        blocks = [(shape.layers, shape.tokens - self.exact, shape.heads, codec.block_bytes) for codec in self.codecs()]
        kept = (shape.layers, self.exact * row * self.dtype.itemsize)
        return [kept, kept, (shape.layers * self.centred, 2 * row), *blocks]

    @property
    def size(self) -> int:
        """Bytes of the whole part."""
        return _HEADER.size + sum(map(math.prod, self.sections())) + _CRC.size


def _digest(name: str) -> bytes:
    return hashlib.sha256(words("name", name).encode()).digest()[:8]


def _name(field: bytes) -> str:
    """Reads the name of a codec from its field of eight bytes."""
    name = field.rstrip(b"\0")
    if not name.isascii() or name.decode("ascii") not in _CODECS:
        raise TqkvError(f"payload with codec {name!r} is not valid: expected {', '.join(_CODECS)}")
    return name.decode("ascii")


@dataclass(frozen=True)
class Format:
    """How payloads are written. Readers do not need it.

    * `codec` names the codecs of keys and values ("t4,t3", or one for both).
    * The first `exact` tokens of a part stay exact, because all later tokens attend to the start of a text.
    * If `centre` is true, the mean of the other keys of each layer and KV head is stored separately, two bytes per coordinate. Keys
      of many models have a large constant.
    * `effort` of the encoder is "fast", "default" or "best". Trellis codes take twice the time for each step. Neither the size nor
      the reader depends on it.
    * `budget` is the number of bits per value, and `basis` a file that `tqkv basis` or a `tqkv.Learner` wrote. With both, parts are
      chunks of the storage tier: fewer bits for the same errors, and milliseconds to encode and to decode. The reader needs the basis
      too.

    >>> import torch
    >>> from tqkv.payload import Format, decode
    >>> keys, values = torch.randn(2, 4, 256, 8, 128, dtype=torch.bfloat16)  # layers, tokens, heads, head_dim
    >>> format = Format("t4,t3")
    >>> data = format.encode([(keys, values)])
    >>> len(data), round(2 * 2 * keys.numel() / len(data), 2)
    (1009220, 4.16)
    >>> k, v = torch.empty_like(keys), torch.empty_like(values)
    >>> decode(data, [(k, v)])
    >>> float(((k - keys) ** 2).mean()) < 0.01
    True
    """

    codec: str = "t3"
    seed: int = _native.SEED
    centre: bool = True
    exact: int = 4
    effort: str = "default"
    budget: float | None = None
    basis: str | None = None

    def __post_init__(self) -> None:
        if (self.budget is None) != (self.basis is None):
            raise TqkvError(
                f"budget {self.budget!r} and basis {self.basis!r} are not valid: expected both (bits per value, a file of `tqkv basis`) or none"
            )
        if not isinstance(self.codec, str) or not all(name in _CODECS for name in self.names()):
            raise TqkvError(f"codec {self.codec!r} is not valid: expected one or two (keys,values) of {', '.join(_CODECS)}")
        if self.budget is not None:
            real("budget", self.budget)
            if not isinstance(self.basis, (str, os.PathLike)):
                raise TqkvError(f"basis {self.basis!r} is not valid: expected a file of `tqkv basis`")
        count("seed", self.seed)
        if not isinstance(self.centre, bool):
            raise TqkvError(f"centre {self.centre!r} is not valid: expected true or false")
        if count("exact", self.exact) >= 2**16:
            raise TqkvError(f"exact {self.exact!r} is not valid: expected a number of tokens below 65536")
        _codec("i8", 128, 0, words("effort", self.effort))  # refuses others

    def names(self) -> tuple[str, str]:
        """The names of the codecs of keys and values."""
        keys, _, values = self.codec.partition(",")
        return keys.strip(), (values or keys).strip()

    def header(self, axes: Sequence[int], dtype: torch.dtype, name: str = "") -> Header:
        """The header of a part with these axes in this format."""
        if dtype not in DTYPES:
            raise TqkvError(f"dtype {dtype} is not valid: expected float32, float16 or bfloat16")
        shape = Shape.of(axes)
        exact = min(self.exact, shape.tokens)
        return Header(*self.names(), self.centre, dtype, exact, self.seed, shape, _digest(name))

    def size(self, axes: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes that `encode` writes for a part with these axes. They do not depend on the values."""
        if self.budget is not None and self.basis is not None:
            return _chunks.size(_chunks.storage_of(self.basis), Shape.of(axes).tokens, dtype, self.budget)
        return self.header(axes, dtype).size

    def encode(self, parts: Sequence[Part], out: Any = None, name: str = "") -> Any:
        """Writes the parts, one after the other, to a new array of bytes or to the start of `out`. If a part is refused, the bytes in
        `out` are no payload. `name` is the store's name of the payload, which decodes only under this name."""
        if self.budget is not None:
            return self._encode_chunks(parts, out, name)
        headers = [self.header(keys.shape, keys.dtype, name) for keys, values in parts if _alike(keys, values)]
        total = sum(header.size for header in headers)
        target = np.empty(total, np.uint8) if out is None else octet_array("out", out)
        if len(target) < total:
            raise TqkvError(f"out of {len(target)} bytes is not valid: expected {total}")
        at = 0
        for header, (keys, values) in zip(headers, parts):
            _encode(header, header.codecs(self.effort), keys, values, target[at : at + header.size])
            at += header.size
        return target if out is None else total

    def _encode_chunks(self, parts: Sequence[Part], out: Any, name: str) -> Any:
        storage, chunks = _chunks.storage_of(self.basis or ""), []
        for keys, values in parts:
            _alike(keys, values)
            axes = Shape.of(keys.shape).axes
            both = keys.reshape(axes), values.reshape(axes)
            chunks.append(_chunks.encode(storage, self.budget or 0.0, *both, _digest(name)))
        total = sum(self.size(keys.shape, keys.dtype) for keys, _ in parts)
        target = np.empty(total, np.uint8) if out is None else octet_array("out", out)
        if len(target) < total:
            raise TqkvError(f"out of {len(target)} bytes is not valid: expected {total}")
        data = np.concatenate(chunks)
        target[: len(data)], target[len(data) : total] = data, 0
        return target if out is None else total


def decode(data: Any, parts: Sequence[Part], name: str = "", basis: str | None = None) -> None:
    """Decodes a payload into views of the encoded shape and dtype. Chunks of the storage tier need the file of the basis that they
    were encoded with.

    A payload that `Format.encode` did not write for such parts under this name is refused, and the views stay as they are. All parts
    are therefore checked before any view is written. Parts of float16 are decoded to separate memory, which takes as much memory again.
    """
    data = octet_array("payload", data)
    if data[: len(MAGIC)].tobytes() == _chunks.MAGIC:
        return _decode_chunks(data, parts, name, basis)
    checked, at = [], 0
    for keys, values in parts:
        header = Header.unpack(data[at:])
        if _alike(keys, values) and (header.shape, header.dtype) != (Shape.of(keys.shape), keys.dtype):
            raise TqkvError(
                f"payload of {header.dtype} {header.shape} is not valid: expected {keys.dtype} {Shape.of(keys.shape)}"
            )
        if header.digest != _digest(name):
            raise TqkvError(f"payload of another name is not valid: expected {name!r}")
        part = data[at : at + header.size]
        if len(part) < header.size:
            raise TqkvError(f"payload of {len(data)} bytes is not valid: expected {at + header.size}, as its header says")
        if _native.crc32(part[: -_CRC.size]) != _CRC.unpack_from(part, len(part) - _CRC.size)[0]:
            raise TqkvError("payload with damage is not valid: expected bytes that fit its CRC")
        checked.append((header, part, keys, values))
        at += header.size
    if at != len(data):
        raise TqkvError(f"payload of {len(data)} bytes is not valid: expected {at}")
    for header, part, *_ in checked:
        _check(header, part)
    decoded = [_place(header, keys, values) for header, _, keys, values in checked]
    for (header, part, *_), place in zip(checked, decoded):
        _decode(header, part, place)
    for (*_, keys, values), (k, v) in zip(checked, decoded):
        if k is not keys:
            keys.copy_(k.view(keys.shape))
            values.copy_(v.view(values.shape))


def _decode_chunks(data: np.ndarray, parts: Sequence[Part], name: str, basis: str | None) -> None:
    if basis is None:
        raise TqkvError("basis None is not valid for a payload of the storage tier: expected the file of its basis")
    storage, decoded, at = _chunks.storage_of(basis), [], 0
    for keys, values in parts:
        _alike(keys, values)
        size, k, v = _chunks.decode(storage, data[at:], Shape.of(keys.shape).axes, keys.dtype, _digest(name))
        decoded += [(keys, k), (values, v)]
        at += size
    if data[at:].any():
        raise TqkvError("payload with bytes behind its chunks is not valid: expected zeros there")
    for target, x in decoded:
        target.copy_(x.view(target.shape))


def _alike(keys: torch.Tensor, values: torch.Tensor) -> bool:
    if keys.device.type != "cpu" or values.device.type != "cpu":
        raise TqkvError(f"keys on {keys.device} and values on {values.device} are not valid: expected main memory")
    if keys.shape != values.shape or keys.dtype != values.dtype:
        raise TqkvError(
            f"keys {keys.dtype} {list(keys.shape)} and values {values.dtype} {list(values.shape)} are not valid: expected one shape and dtype"
        )
    return True


def _sides(header: Header, part: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Views of the sections of keys and of values: exact tokens, means, blocks. There are no means of values."""
    at, views = _HEADER.size, []
    for size in map(math.prod, header.sections()):
        # Empty views of one array would count as the same memory.
        views.append(part[at : at + size] if size else np.empty(0, np.uint8))
        at += size
    exact_keys, exact_values, means, keys, values = views
    return [(exact_keys, means, keys), (exact_values, np.empty(0, np.uint8), values)]


def _encode(
    header: Header, codecs: tuple[Codec, Codec], keys: torch.Tensor, values: torch.Tensor, part: np.ndarray
) -> None:
    part[: _HEADER.size] = np.frombuffer(header.pack(), np.uint8)
    for what, codec, x, sections in zip(("keys", "values"), codecs, (keys, values), _sides(header, part)):
        if x.dim() > _MOST_AXES:
            x = x.reshape(header.shape.axes)
        _native.encode_side(codec._native, what, _numbers(x), header.exact, sections)
    part[-_CRC.size :] = np.frombuffer(_CRC.pack(_native.crc32(part[: -_CRC.size])), np.uint8)


def _check(header: Header, part: np.ndarray) -> None:
    """The CRC proves that the bytes are the writer's, not that the writer is correct. Numbers that are not finite are refused."""
    for codec, sections in zip(header.codecs(), _sides(header, part)):
        if not _native.side_is_finite(codec._native, dtype_name(header.dtype), sections):
            raise TqkvError("payload with NaN or infinity is not valid: expected finite keys, values and means")


def _decode(header: Header, part: np.ndarray, out: tuple[torch.Tensor, torch.Tensor]) -> None:
    for what, codec, x, sections in zip(("keys", "values"), header.codecs(), out, _sides(header, part)):
        if not _native.decode_side(codec._native, what, _numbers(x), header.exact, sections):
            raise TqkvError(f"payload with {what} beyond {header.dtype} is not valid: expected finite keys and values")


def _place(header: Header, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where to decode to: the views, which have been checked, or separate memory. A sum of numbers and means may be too large
    for f16, and more axes than two of tokens are not decoded to."""
    if header.dtype != torch.float16 and keys.dim() <= _MOST_AXES:
        return keys, values
    axes = header.shape.axes
    return torch.empty(axes, dtype=header.dtype), torch.empty(axes, dtype=header.dtype)


def _numbers(x: torch.Tensor) -> np.ndarray:
    """An array in the same memory. NumPy has no bfloat16, so its bits are passed, by way of the type that all versions know."""
    x = x.detach()
    if x.dtype == torch.bfloat16:
        bits: np.ndarray = x.view(torch.int16).numpy().view(np.uint16)
        return bits
    numbers: np.ndarray = x.numpy()
    return numbers
