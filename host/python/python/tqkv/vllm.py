"""A secondary tier of vLLM's KV offloading. It keeps chunks as payloads of tqkv, in a folder or in memory. With attention on codes the chunks
have codes already, and are kept as they lie.

In `kv_connector_extra_config`:

    "spec_name": "TieringOffloadingSpec", "secondary_tiers":
        [{"type": "TqkvTier", "module_path": "tqkv.vllm", "head_dim": 128, "codec": "t4,t3", "folder": "/cache"}]
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Callable, ClassVar, Iterable

import numpy as np
import torch
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadKey, ReqContext, RequestOffloadingContext, ScheduleEndContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from . import _native, payload
from ._hosts import refuse_fields
from ._native import SEED, TqkvError, __version__
from ._store import open_store
from .vllm_plugin import VARIABLE

_log = logging.getLogger(__name__)

_LAYOUTS = ("LBHNC", "LBNHC", "BLHNC", "BLNHC")
"""Accepted orders in memory. L is layers, B blocks, H heads, N tokens of a block, C content (K, then V)."""


_FIELDS = {
    "": "groups worker_kv_bytes_per_block enable_kv_cache_events extra_config engine_id model cache parallel replicated_layout canonical_layout"
    " kv_cache_layout",
    "model": "name dtype",
    "cache": "tokens_per_hash blocks_per_chunk",
    "parallel": "rank world_size tp_size pp_size pcp_size dcp_size data_parallel_index data_parallel_size data_parallel_rank_local"
    " is_parallelism_agnostic",
}
"""Fields of vLLM's configuration, and of its parts, that are heeded below or change no block."""
_GROUP = "tokens_per_block layer_names group_id".split()


class Rows:
    """Keys and values of each worker in the rows of the primary tier, one row per chunk."""

    def __init__(self, config: Any, view: memoryview, head_dim: int | None, format: payload.Format) -> None:
        if head_dim is None:
            raise TqkvError("head_dim None is not valid: expected that of the model")
        parallel, self.format = config.parallel, format
        for part, known in _FIELDS.items():
            refuse_fields("vLLM", getattr(config, part) if part else config, known.split())
        for group in config.groups:
            refuse_fields("vLLM", group, _GROUP)
        refused = {
            f"{len(config.groups)} groups of layers": len(config.groups) != 1,
            f"layout {config.kv_cache_layout}": config.kv_cache_layout not in _LAYOUTS,
            "replicated_layout": config.replicated_layout,
            "canonical_layout": config.canonical_layout,
            "pipeline or context parallelism": parallel.world_size != parallel.tp_size or parallel.pcp_size > 1 or parallel.dcp_size > 1,
        }
        for what, wrong in refused.items():
            if wrong:
                raise TqkvError(f"{what} is not valid: expected a model of one group, tensor parallelism and {', '.join(_LAYOUTS)}")
        self.dtype = getattr(torch, config.model.dtype, None)
        if self.dtype not in payload.DTYPES:
            raise TqkvError(f"KV cache of {config.model.dtype} is not valid: expected float32, float16 or bfloat16")
        group = config.groups[0]
        layers, tokens = len(group.layer_names), group.tokens_per_block
        width = layers * tokens * 2 * head_dim * self.dtype.itemsize
        heads, rest = divmod(config.worker_kv_bytes_per_block, width)
        if rest or not heads:
            raise TqkvError(
                f"blocks of {config.worker_kv_bytes_per_block} bytes per worker are not valid: expected a multiple of {width}, as {layers}"
                f" layers of {tokens} tokens with head_dim {head_dim} have"
            )
        sizes = dict(L=layers, B=config.cache.blocks_per_chunk, H=heads, N=tokens)
        order = config.kv_cache_layout[:-1]
        self.sizes = [*(sizes[axis] for axis in order), 2, head_dim]
        self.order = [*(order.index(axis) for axis in "LBNH"), 4]
        self.tokens = sizes["B"] * tokens
        self.cell = config.worker_kv_bytes_per_block * sizes["B"]
        self.workers, self.row = parallel.world_size, view.strides[0]
        self.bytes = torch.from_numpy(np.asarray(view).view(np.uint8).reshape(-1))

    def __getitem__(self, chunk: int) -> list[payload.Part]:
        parts = []
        for worker in range(self.workers):
            at = int(chunk) * self.row + worker * self.cell
            cell = self.bytes[at : at + self.cell].view(self.dtype).view(self.sizes)
            parts.append(tuple(side.permute(self.order) for side in cell.unbind(-2)))
        return parts

    def pack(self, chunk: int, begins: bool, name: str) -> Any:
        format = self.format if begins else replace(self.format, exact=0)
        return format.encode(self[chunk], name=name)

    def unpack(self, data: bytes, chunk: int, name: str) -> None:
        payload.decode(data, self[chunk], name)


class CodeRows:
    """Rows of the primary tier that have codes, of all layers and workers. A chunk is packed as it lies, with its name's digest and a CRC."""

    def __init__(self, config: Any, view: memoryview) -> None:
        if config.canonical_layout:
            raise TqkvError("canonical_layout with attention on codes is not valid: expected blocks as they lie")
        self.bytes = np.asarray(view).view(np.uint8).reshape(len(view), -1)
        self.tokens = 0
        # Rows end with padding.
        self.used = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk * config.parallel.world_size
        if not 0 < self.used <= self.bytes.shape[1]:
            raise TqkvError(f"chunks of {self.used} bytes are not valid: expected at most the {self.bytes.shape[1]} of a row")

    def pack(self, chunk: int, begins: bool, name: str) -> bytes:
        data = self._digest(name) + self.bytes[int(chunk), : self.used].tobytes()
        return data + _native.crc32(np.frombuffer(data, np.uint8)).to_bytes(4, "little")

    def unpack(self, data: bytes, chunk: int, name: str) -> None:
        whole, check = np.frombuffer(data, np.uint8)[:-4], int.from_bytes(data[-4:], "little")
        if len(whole) != 8 + self.used or data[:8] != self._digest(name) or _native.crc32(whole) != check:
            raise TqkvError(f"chunk of {len(data)} bytes is not valid: expected {12 + self.used} of the chunk {name}, as they were stored")
        self.bytes[int(chunk), : self.used] = whole[8:]

    @staticmethod
    def _digest(name: str) -> bytes:
        return hashlib.sha256(name.encode()).digest()[:8]


def _prefix(config: Any, codes: str) -> str:
    """The folder of a configuration: chunks with the same key are equal only within it. `codes` is the policy of attention on codes."""
    fields: tuple[Any, ...] = (config.model, config.cache, config.groups, config.parallel.world_size)
    if codes:
        # What lies in a block is as its kernels want it. Its bytes tell it from a block without codes, which an engine has if it was not told to
        # use the back end of codes.
        words = sorted(word for word in codes.split() if not word.startswith(("hot=", "sinks=")))
        fields += (words, __version__, config.kv_cache_layout, config.worker_kv_bytes_per_block)
    return f"{config.model.name.replace('/', '-')}-{hashlib.sha256(repr(fields).encode()).hexdigest()[:12]}"


class _Lookups(AsyncLookupManager):
    """Looks for payloads in a thread of its own, because a folder may be slow."""

    def __init__(self, tier: TqkvTier) -> None:
        self._has = lambda key: tier.store.has(tier._name(key))
        super().__init__(tier.tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> list[bool]:
        return [self._has(key) for key in keys]


class TqkvTier(SecondaryTierManager):
    """Options:

    * `head_dim` of the model
    * `folder`, or `max_bytes` of main memory
    * `codec`, `seed`, `centre`, `effort` and `exact`, as in `tqkv.payload.Format`; `exact` applies to chunks that begin a text
    * `threads`
    * `locality` of the store, "LOCAL" or "REMOTE", which vLLM passes on to its listeners

    With attention on codes (`TQKV_VLLM`) chunks stay as they are, and only `folder` or `max_bytes`, `threads` and `locality` are valid.

    A chunk that is missing, damaged or of another shape fails to load, and is a miss from then on."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        *,
        head_dim: int | None = None,
        codec: str = "t3",
        seed: int = SEED,
        centre: bool = True,
        exact: int = 4,
        effort: str = "default",
        folder: str | None = None,
        max_bytes: int | None = None,
        threads: int = 2,
        locality: str | None = None,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        if locality not in (None, "LOCAL", "REMOTE"):
            raise TqkvError(f"locality {locality!r} is not valid: expected LOCAL or REMOTE")
        self.locality = None if locality is None else Locality(locality)
        config, codes = offloading_spec.config, os.environ.get(VARIABLE, "")
        self.format = payload.Format(codec, seed, centre, exact, effort)
        self.rows: Rows | CodeRows
        if not codes:
            self.rows = Rows(config, primary_kv_view, head_dim, self.format)
        elif self.format == payload.Format("t3") and head_dim is None:
            self.rows = CodeRows(config, primary_kv_view)
        else:
            raise TqkvError(f"options of a codec with {VARIABLE}={codes} are not valid: expected none, because chunks have its codes already")
        self.store = open_store(folder, max_bytes)
        self._prefix = _prefix(config, codes)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tqkv")
        self._running: set[Future[None]] = set()
        self._finished: SimpleQueue[tuple[JobResult, list[OffloadKey]]] = SimpleQueue()
        self._lookups = _Lookups(self)

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._lookups.flush()

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._lookups.cleanup(req_context.req_id)

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, self._store)

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._submit(job_metadata, self._load)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        while True:
            try:
                result, failed = self._finished.get_nowait()
            except Empty:
                return results
            # What was found and did not load is a miss from now on, also for a request that has looked it up already.
            self._lookups.mark_miss(failed)
            results.append(result)

    def drain_jobs(self) -> None:
        wait(self._running.copy())

    def shutdown(self) -> None:
        self._lookups.shutdown()
        self._pool.shutdown()
        # vLLM closes the memory of the primary tier next, which nothing may refer to then.
        del self.rows, self._primary_kv_view

    def _name(self, key: OffloadKey) -> str:
        name = key.hex()
        return f"{self._prefix}/{name[:2]}/{name}.tqp"

    def _submit(self, job: TransferJob, transfer: Callable[[TransferJob, OffloadKey, int], int]) -> None:
        future = self._pool.submit(self._run, job, transfer)
        self._running.add(future)
        future.add_done_callback(self._running.discard)

    def _run(self, job: TransferJob, transfer: Callable[[TransferJob, OffloadKey, int], int]) -> None:
        """Transfers each chunk of a job, and reports which of them succeeded."""
        begin, done, failed, total = time.monotonic(), [], [], 0
        for key, chunk in zip(job.keys, job.chunk_ids):
            try:
                total += transfer(job, key, chunk)
                done.append(key)
            except Exception as error:
                failed.append(key)
                _log.warning("%s of chunk %s failed: %s", "load" if job.is_promotion else "store", key.hex(), error)
        whole = not failed
        some = tuple(done) if job.is_promotion and done and not whole else None
        result = JobResult(job.job_id, whole, some, time.monotonic() - begin, total)
        self._finished.put((result, failed if job.is_promotion else []))

    def _store(self, job: TransferJob, key: OffloadKey, chunk: int) -> int:
        """Stores a chunk and returns the bytes written."""
        name, end = self._name(key), job.req_context.get_offload_key_position(key)
        if self.store.has(name):
            return 0
        data = self.rows.pack(chunk, end is None or end <= self.rows.tokens, name)
        self.store.put(name, data)
        return len(data)

    def _load(self, job: TransferJob, key: OffloadKey, chunk: int) -> int:
        """Loads a chunk and returns the bytes read."""
        name = self._name(key)
        data = self.store.get(name)
        if data is None:
            raise TqkvError("a chunk that is not there is not valid: expected one that lookup found")
        try:
            self.rows.unpack(data, chunk, name)
        except TqkvError:
            self.store.drop(name)
            raise
        return len(data)
