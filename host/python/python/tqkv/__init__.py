"""KV-cache compression for NumPy and PyTorch: codecs, caches, files.

`tqkv.transformers` is a cache for models of Hugging Face Transformers.
"""

from ._cache import KvCache
from ._codec import Codec
from ._compress import Compressor
from ._files import TqkFile, TqkWriter, open, save
from ._native import TqkvError

__all__ = ["Codec", "Compressor", "KvCache", "TqkFile", "TqkWriter", "TqkvError", "open", "save"]
