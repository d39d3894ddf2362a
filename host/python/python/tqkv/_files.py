""".tqk files: encoded vectors on disk, with the same bytes as files of the command `tqkv`."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _native
from ._arrays import count, dtype_name, to_numpy
from ._codec import Codec, codec_of
from ._native import TqkvError

if TYPE_CHECKING:
    from ._arrays import DType, Either


class TqkFile:
    """A mapped .tqk file. `file[10:20]` decodes some vectors, `read` all. The file must not be changed in place while it is open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._native = _native.File(path)
        self.codec = Codec._of(self._native.codec)

    @property
    def mean(self) -> np.ndarray | None:
        """The mean that was subtracted before encoding, and is added after decoding."""
        return self._native.mean

    @property
    def dim(self) -> int:
        """Values per vector."""
        return self.codec.dim

    def __len__(self) -> int:
        """Number of vectors."""
        return len(self._native)

    def read(self, start: int = 0, stop: int | None = None, dtype: DType = "float32") -> np.ndarray:
        """Decoded vectors `[stop - start, dim]`."""
        stop = len(self) if stop is None else count("stop", stop)
        return self._native.read(count("start", start), stop, dtype_name(dtype))

    def blocks(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Stored blocks of vectors, uint8 `[stop - start, block_bytes]`, without the mean."""
        return self._native.blocks(count("start", start), len(self) if stop is None else count("stop", stop))

    def __getitem__(self, index: int | slice) -> np.ndarray:
        """A vector, or the vectors of a slice."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.read(start, max(start, stop)) if step == 1 else self.read()[index]
        position = range(len(self))[index]
        vector: np.ndarray = self.read(position, position + 1)[0]
        return vector

    def verify(self) -> None:
        """Checks every byte. Without this call, a chunk is checked when it is first read."""
        self._native.verify()


class TqkWriter:
    """Writes a .tqk file piece by piece. The file is complete when the `with` block ends, and does not appear if the block fails."""

    def __init__(self, path: str | os.PathLike[str], codec: Codec, mean: Either | None = None) -> None:
        if not isinstance(codec, Codec):
            raise TqkvError(f"codec of the type {type(codec).__name__} is not valid: expected a tqkv.Codec, which has the dim")
        mean = None if mean is None else to_numpy(mean)
        self._native = _native.FileWriter(path, codec._native, mean)

    def write(self, x: Either) -> None:
        """Appends vectors `[.., dim]`."""
        self._native.write(to_numpy(x))

    def __enter__(self) -> TqkWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._native.commit()
        else:
            self._native.discard()


def open(path: str | os.PathLike[str]) -> TqkFile:
    """Opens a .tqk file for reading.

    >>> import numpy as np, os, tempfile, tqkv
    >>> path = os.path.join(tempfile.mkdtemp(), "keys.tqk")
    >>> x = np.random.default_rng(0).standard_normal((300, 128), dtype=np.float32)
    >>> tqkv.save(path, x, tqkv.Codec("t3"))
    >>> file = tqkv.open(path)
    >>> len(file), file.dim, file.codec.name, file[10:20].shape
    (300, 128, 't3', (10, 128))
    """
    return TqkFile(path)


def save(path: str | os.PathLike[str], x: Either, codec: Codec | str, *, centre: bool = False) -> None:
    """Writes vectors `[.., dim]` to a .tqk file, like `tqkv encode`. `codec` may be a name: "t3". `centre` subtracts their mean, which
    the file stores."""
    array = to_numpy(x)
    codec = codec_of(codec, array.shape[-1] if array.ndim else 0)
    mean = _mean(array, codec.dim) if centre else None
    with TqkWriter(path, codec, mean) as writer:
        writer.write(array)


def _mean(array: np.ndarray, dim: int) -> np.ndarray:
    """The mean, summed row by row in float64 as the command does."""
    sums = np.zeros(dim)
    rows = array.reshape(-1, dim)
    for start in range(0, len(rows), 4096):
        some = rows[start : start + 4096]
        if some.dtype == np.uint16:
            some = (some.astype(np.uint32) << 16).view(np.float32)
        # NumPy adds along the first axis row by row.
        sums = np.add.reduce(np.concatenate([sums[None], some.astype(np.float64)]), axis=0)
    return (sums / max(len(rows), 1)).astype(np.float32)
