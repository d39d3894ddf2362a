"""KV-cache compression for NumPy and PyTorch: codecs, caches, files and a storage tier.

`tqkv.transformers` is a cache for models of Hugging Face Transformers.
"""

from ._cache import KvCache
from ._codec import Codec
from ._compress import Compressor
from ._files import TqkFile, TqkWriter, open, save
from ._gpu import GpuCache
from ._native import TqkvError, __version__
from ._plan import Plan
from ._slots import SlotCache, SlotMask
from ._storage import Basis, Follower, Generations, Learner, Rope, Storage

__all__ = [
    "Basis",
    "Codec",
    "Compressor",
    "Follower",
    "Generations",
    "GpuCache",
    "KvCache",
    "Learner",
    "Plan",
    "Rope",
    "SlotCache",
    "SlotMask",
    "Storage",
    "TqkFile",
    "TqkWriter",
    "TqkvError",
    "__version__",
    "open",
    "save",
]
