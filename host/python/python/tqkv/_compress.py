"""Compresses keys and values of one head dim, without a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._codec import Codec
from ._native import SEED

if TYPE_CHECKING:
    from ._arrays import Array, DType, Either


class Compressor:
    """Compresses keys and values `[.., head_dim]` separately, and estimates dot products with compressed keys.

    >>> import numpy as np, tqkv
    >>> compressor = tqkv.Compressor(head_dim=128, kv="t4,t3")
    >>> keys = np.random.default_rng(0).standard_normal((4096, 128), dtype=np.float32)
    >>> ck = compressor.compress_k(keys)
    >>> ck.shape, compressor.decompress_k(ck).shape
    ((4096, 66), (4096, 128))
    >>> estimated, exact = compressor.estimate(keys[0], ck), keys @ keys[0]
    >>> bool(abs(estimated - exact).mean() < 1)
    True
    """

    def __init__(self, head_dim: int, kv: str = "t4,t3", seed: int = SEED) -> None:
        key, _, value = kv.partition(",")
        self.key_codec = Codec(key.strip(), head_dim, seed)
        self.value_codec = Codec((value or key).strip(), head_dim, seed)

    def compress_k(self, k: Array) -> Array:
        """Encodes keys to blocks, uint8 `[.., key_codec.block_bytes]`."""
        return self.key_codec.encode(k)

    def compress_v(self, v: Array) -> Array:
        """Encodes values to blocks, uint8 `[.., value_codec.block_bytes]`."""
        return self.value_codec.encode(v)

    def decompress_k(self, blocks: Array, dtype: DType = "float32") -> Array:
        """Decodes blocks to keys."""
        return self.key_codec.decode(blocks, dtype)

    def decompress_v(self, blocks: Array, dtype: DType = "float32") -> Array:
        """Decodes blocks to values."""
        return self.value_codec.decode(blocks, dtype)

    def estimate(self, q: Array, k_blocks: Either) -> Array:
        """Unbiased estimates `[.., tokens]` of the dot products of queries `[.., head_dim]` and compressed keys `[tokens,
        block_bytes]`. The keys stay compressed."""
        return self.key_codec.scores(q, k_blocks)

    def attend(self, q: Array, k_blocks: Either, v_blocks: Either, scale: float | None = None) -> Array:
        """Attention of queries over compressed tokens, like `Codec.attend`."""
        return self.key_codec.attend(q, k_blocks, v_blocks, value_codec=self.value_codec, scale=scale)
