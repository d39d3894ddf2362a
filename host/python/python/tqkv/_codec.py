"""Codecs encode vectors to blocks and decode them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from . import _native
from ._arrays import count, dtype_name, from_numpy, to_numpy, writable
from ._native import TqkvError

if TYPE_CHECKING:
    from ._arrays import Array, DType, Either


class Codec:
    """Encodes, decodes and scores vectors of one head dim.

    Vectors are arrays or tensors of any leading shape `[..., dim]` of float32, float16 or bfloat16. NumPy passes the bits of
    bfloat16 as uint16. Blocks are uint8 `[..., block_bytes]`. Results for tensors are tensors. Encoder, decoder and scores must have
    the same seed. Only the encoder uses `scale_mode` ("raw", "preserving", "unbiased", "mmse") and `effort` ("fast", "default",
    "best").

    >>> import numpy as np, tqkv
    >>> codec = tqkv.Codec("t3", dim=128)
    >>> x = np.random.default_rng(0).standard_normal((2, 5, 128), dtype=np.float32)
    >>> blocks = codec.encode(x)
    >>> blocks.shape, codec.bits_per_value
    ((2, 5, 50), 3.125)
    >>> error = codec.decode(blocks) - x
    >>> float((error**2).sum() / (x**2).sum()) < 0.03
    True
    """

    def __init__(
        self,
        name: str,
        dim: int = 128,
        seed: int = _native.SEED,
        *,
        scale_mode: str = "unbiased",
        effort: str = "default",
    ) -> None:
        for what, text in (("name", name), ("scale_mode", scale_mode), ("effort", effort)):
            if not isinstance(text, str):
                raise TqkvError(f"{what} {text!r} of a codec is not valid: expected a text")
        self._native = _native.Codec(name, count("dim", dim), count("seed", seed), scale_mode, effort)

    @classmethod
    def _of(cls, native: _native.Codec) -> Codec:
        codec = cls.__new__(cls)
        codec._native = native
        return codec

    @staticmethod
    def names() -> list[str]:
        """Names of all codecs.

        >>> import tqkv
        >>> "t3" in tqkv.Codec.names()
        True
        """
        return _native.Codec.names()

    @property
    def name(self) -> str:
        """Name of the codec: "t3"."""
        return self._native.name

    @property
    def dim(self) -> int:
        """Values per vector."""
        return self._native.dim

    @property
    def seed(self) -> int:
        """Seed of the rotation's signs."""
        return self._native.seed

    @property
    def scale_mode(self) -> str:
        """What the encoder's scale of a vector preserves: "raw", "preserving", "unbiased" or "mmse"."""
        return self._native.scale_mode

    @property
    def effort(self) -> str:
        """Effort of the encoder: "fast", "default" or "best"."""
        return self._native.effort

    @property
    def block_bytes(self) -> int:
        """Bytes of one encoded vector."""
        return self._native.block_bytes

    @property
    def bits_per_value(self) -> float:
        """Bits of a block per value, its scale included."""
        return 8 * self.block_bytes / self.dim

    def encode(self, x: Array, out: Array | None = None) -> Array:
        """Encodes vectors to blocks, in `out` if it is given."""
        blocks = self._native.encode(to_numpy(x), writable(out))
        return from_numpy(blocks, x) if out is None else out

    def decode(self, blocks: Array, dtype: DType = "float32", out: Array | None = None) -> Array:
        """Decodes blocks to vectors of float32, float16 or bfloat16, in `out` if it is given."""
        dtype = dtype_name(dtype)
        vectors = self._native.decode(to_numpy(blocks), dtype, writable(out))
        return from_numpy(vectors, blocks, dtype) if out is None else out

    def scores(self, q: Array, blocks: Either) -> Array:
        """Dot products `[..., tokens]` of queries `[..., dim]` and blocks `[tokens, block_bytes]`, which stay encoded.

        A block with a scale of NaN or infinity, which no encoder writes, has a score of NaN or infinity.
        """
        return from_numpy(self._native.scores(to_numpy(q), to_numpy(blocks)), q)

    def attend(
        self,
        q: Array,
        k_blocks: Either,
        v_blocks: Either,
        *,
        value_codec: Codec | str | None = None,
        scale: float | None = None,
    ) -> Array:
        """Attention of queries `[..., dim]` over encoded tokens, f32 `[..., value dim]`. Nothing is decoded.

        `value_codec` is the codec of the values, by default this one. A name stands for the codec with this dim and seed. Logits are
        multiplied by `scale`, by default 1 / sqrt(dim).
        """
        values = self if value_codec is None else codec_of(value_codec, self.dim, self.seed)
        scale = self.dim**-0.5 if scale is None else scale
        arrays = to_numpy(q), to_numpy(k_blocks), to_numpy(v_blocks)
        return from_numpy(self._native.attend(*arrays, values._native, scale), q)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made anew from the arguments."""
        make = partial(Codec, scale_mode=self.scale_mode, effort=self.effort)
        return make, (self.name, self.dim, self.seed)

    def __repr__(self) -> str:
        return f"tqkv.Codec({self.name!r}, dim={self.dim}, seed={self.seed})"


def codec_of(codec: Codec | str, dim: int, seed: int = _native.SEED) -> Codec:
    """A codec, or the codec of a name."""
    if isinstance(codec, str):
        return Codec(codec, dim, seed)
    if not isinstance(codec, Codec):
        raise TqkvError(f"codec of the type {type(codec).__name__} is not valid: expected a tqkv.Codec or the name of one")
    return codec
