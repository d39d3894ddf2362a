"""A storage backend for SGLang's HiCache. It keeps pages as payloads of tqkv, in a folder or in memory.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config \\
        '{"backend_name": "tqkv", "module_path": "tqkv.sglang", "class_name": "TqkvHiCache",
          "folder": "/cache", "codec": "t4,t3", "interface_v1": 1}'
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Sequence

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, HiCacheStorageConfig

from . import payload
from ._hosts import refuse_arguments, refuse_fields
from ._native import TqkvError
from ._store import open_store

_log = logging.getLogger(__name__)

_LAYOUTS = {
    "layer_first": "PLTHD",
    "page_first": "PTLHD",
    "page_first_direct": "PLTHD",
    "page_head": "PHTLD",
}
"""Order of a page's axes in the layouts of host pools. P is K or V, L layers, T tokens, H heads, D head dim."""

_FORMAT = ("codec", "seed", "centre", "exact", "effort")
_OPTIONS = (
    # Of SGLang, for any backend.
    ("backend_name", "module_path", "class_name", "interface_v1", "hicache_storage_pass_prefix_keys")
    + ("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token", "prefetch_timeout_max")
    + ("folder", "max_bytes", *_FORMAT)
)
_FIELDS = (
    "tp_rank tp_size pp_rank pp_size attn_cp_rank attn_cp_size is_mla_model enable_storage_metrics is_page_first_layout model_name dp_rank"
    " dp_size extra_config"
).split()
"""Fields of a configuration that this backend heeds, or that change no page. Others say which part of a page a rank has."""


class TqkvHiCache(HiCacheStorage):
    """Options in the extra configuration:

    * `folder`, or `max_bytes` of main memory
    * `codec`, `seed`, `centre`, `effort` and `exact`, as in `tqkv.payload.Format`; `exact` applies to pages that may begin a text

    A page that is missing, damaged or of another shape is a miss. A page that cannot be stored is a failure."""

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = storage_config.extra_config or {}
        if storage_config.is_mla_model:
            raise TqkvError("a model with latent attention (MLA) is not valid: expected a model with keys and values")
        refuse_arguments("a backend of SGLang", kwargs or {}, (), "a configuration alone")
        refuse_fields("SGLang", storage_config, _FIELDS)
        if unknown := extra.keys() - set(_OPTIONS):
            raise TqkvError(f"option {min(unknown)} of the backend tqkv is not valid: expected {', '.join(_OPTIONS)}")
        self.format = payload.Format(**{name: extra[name] for name in _FORMAT if name in extra})
        self.store = open_store(extra.get("folder"), extra.get("max_bytes"))
        ranks = ("tp", "pp", "attn_cp")
        self._prefix = str(storage_config.model_name).replace("/", "-") + "".join(
            f"_{rank}{getattr(storage_config, rank + '_rank')}of{getattr(storage_config, rank + '_size')}" for rank in ranks
        )

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Reads the layout of the pages from the pool."""
        super().register_mem_pool_host(mem_pool_host)
        pool, kind = mem_pool_host, type(mem_pool_host).__name__
        # Subclasses of this pool have pages of other shapes.
        if kind != "MHATokenToKVPoolHost" or pool.layout not in _LAYOUTS:
            raise TqkvError(
                f"host pool {kind} of the layout {pool.layout} is not valid: expected MHATokenToKVPoolHost and {', '.join(_LAYOUTS)}"
            )
        sizes = dict(P=2, L=pool.layer_num, T=pool.page_size, H=pool.head_num, D=pool.head_dim)
        order = _LAYOUTS[pool.layout]
        self._sizes = [sizes[axis] for axis in order]
        self._order = [order.index(axis) for axis in "PLTHD"]
        self.format.header([sizes[axis] for axis in "LTHD"], pool.dtype)  # refuses other dtypes and head dims

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: str) -> None:
        """Takes the pool that `register_mem_pool_host` has read, and refuses others, whose pages would be lost without a word."""
        if host_pool is not self.mem_pool_host:
            raise TqkvError(f"host pool '{host_pool_name}' is not valid: expected a model with the pool 'kv' alone")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        page = self.mem_pool_host.get_dummy_flat_data_page() if target_location is None else target_location
        return page if self._load(key, page) else None

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        return [self.get(key, page) for key, page in zip(keys, target_locations or [None] * len(keys))]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self._save(key, value, first=True)

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all([self._save(key, page, first=i == 0) for i, (key, page) in enumerate(zip(keys, values))])

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return [self._load(key, page) for key, page in zip(keys, self._pages(keys, host_indices))]

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        begins = not getattr(extra_info, "prefix_keys", None)
        pages = enumerate(zip(keys, self._pages(keys, host_indices)))
        return [self._save(key, page, first=begins and i == 0) for i, (key, page) in pages]

    def exists(self, key: str) -> bool:
        return self.store.has(self._name(key))

    def clear(self) -> None:
        """Removes the pages of this model and rank."""
        self.store.clear(self._prefix)

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key.replace('/', '-')}.tqp"

    def _pages(self, keys: Sequence[str], host_indices: torch.Tensor) -> list[torch.Tensor]:
        """Views of the pages in the host pool."""
        first = host_indices[:: self.mem_pool_host.page_size].tolist()
        if len(first) != len(keys):
            raise TqkvError(f"{len(keys)} keys for {len(first)} pages are not valid: expected as many of each")
        return [self.mem_pool_host.get_data_page(index, flat=False) for index in first]

    def _part(self, page: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(page.view(self._sizes).permute(self._order).unbind(0))

    def _save(self, key: str, page: torch.Tensor, first: bool) -> bool:
        format = self.format if first else replace(self.format, exact=0)
        try:
            name = self._name(key)
            if not self.store.has(name):
                self.store.put(name, format.encode([self._part(page)], name=name))
            return True
        except (TqkvError, RuntimeError, OSError) as error:
            _log.warning("page %s is not stored: %s", key, error)
            return False

    def _load(self, key: str, page: torch.Tensor) -> bool:
        name = self._name(key)
        try:
            data = self.store.get(name)
            if data is not None:
                payload.decode(data, [self._part(page)], name)
            return data is not None
        except (TqkvError, RuntimeError) as error:
            _log.warning("page %s is a miss: %s", key, error)
            self.store.drop(name)
        except OSError as error:
            _log.warning("page %s cannot be read: %s", key, error)
        return False
