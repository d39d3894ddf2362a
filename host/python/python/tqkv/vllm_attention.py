"""An attention back end of vLLM whose KV cache holds codes: `tqkv.paged` over vLLM's own blocks, block tables and slot mapping.

A token that a request decodes, a drafted one too, is encoded to its slot, and attends to the codes of all tokens up to itself, but to the
first and the newest ones as they were computed (`vllm_exact`). Tokens of a prompt attend to the keys and values that were just computed, and to earlier tokens
of their request as decoded from the codes, with the same exceptions; both go to vLLM's FlashAttention, or to PyTorch's attention where
there is none.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from vllm.config import VllmConfig, get_current_vllm_config, get_current_vllm_config_or_none, get_layers_from_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.quantization.turboquant.config import TQ_PRESETS, TurboQuantConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends import fa_utils
from vllm.v1.attention.backends.utils import split_decodes_and_prefills
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheLayout

from . import _native, paged
from ._hosts import refuse_arguments
from ._native import TqkvError
from .vllm_connectors import CONNECTORS, refused_connector, watch_worker
from .vllm_exact import DEFAULTS, Rows, Seen, Units, Window, requests
from .vllm_exact import VARIABLE as EXACT
from .vllm_plugin import VARIABLE

logger = init_logger(__name__)

BLOCK = 64
"""Tokens of a block as the kernels see it. vLLM splits larger blocks into these."""

MOST_TOKENS = 65_535
"""Tokens of a call of `paged.store`."""

MASK = 1 << 22
"""Most numbers in a mask of a head, where PyTorch's attention takes one."""


def _policy(num_heads: int, num_kv_heads: int, head_dim: int) -> tuple[paged.Layout, Window]:
    """What the variable says of a layer."""
    text = os.environ[VARIABLE]
    spec = _native.Spec([f"layers=1 heads={num_heads} kv-heads={num_kv_heads} head-dim={head_dim}", DEFAULTS, text])
    if lacking := spec.refused("vLLM"):
        raise TqkvError(f"{VARIABLE}={text}: {' '.join(lacking)} is not valid in vLLM: expected some of {spec.accepted('vLLM')}")
    [codecs] = spec.codecs()
    layout = paged.Layout(num_heads, num_kv_heads, head_dim, codecs, BLOCK, spec.seed, spec.scale_mode, spec.effort)
    return layout, Window.of(spec.sinks, spec.hot)


def _head_bytes(head_dim: int) -> int:
    """Bytes of the key and the value of a token and KV head."""
    return _policy(1, 1, head_dim)[0].block_bytes(current_platform.device_type) // BLOCK


class TqkvBackend(AttentionBackend):
    """`--attention-backend CUSTOM`: the codes of all layers, in blocks of exactly their bytes."""

    # Exact rows are kept with the codes, and only attention gets what a step says of them.
    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[TqkvImpl]:
        return TqkvImpl

    @staticmethod
    def get_builder_cls() -> type[TqkvBuilder]:
        return TqkvBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [BLOCK]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        """All in which a block of a layer is one run of bytes. The order within is ours."""
        return tuple(layout for layout in KVCacheLayout if layout.is_block_compact)

    @classmethod
    def holds_codes(cls, spec: AttentionSpec) -> bool:
        return True

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        if spec.state_content_bytes is not None or not cls.holds_codes(spec):
            return spec
        if spec.head_size_v != spec.head_size:
            raise TqkvError(f"values of the head dim {spec.head_size_v} are not valid: expected that of the keys, {spec.head_size}")
        return replace(spec, dtype=torch.uint8, state_content_bytes=_head_bytes(spec.head_size))

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability.major >= 8

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return refused_connector(get_current_vllm_config_or_none()) is None

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False

    @classmethod
    def supports_combination(cls, head_size: int, *given: Any, **named: Any) -> str | None:
        try:
            _head_bytes(head_size)
        except TqkvError as error:
            return str(error)
        return None


class TurboQuantBackend(TqkvBackend):
    """`--kv-cache-dtype turboquant_4bit_nc` and the other types of that name, in whose bytes the codecs must fit. vLLM leaves the first and the
    last two layers of a model to another back end then."""

    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(TQ_PRESETS)

    @staticmethod
    def get_name() -> str:
        return "TURBOQUANT"

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: Any) -> bool:
        return kv_cache_dtype in TQ_PRESETS

    @classmethod
    def holds_codes(cls, spec: AttentionSpec) -> bool:
        return spec.kv_quant_mode.is_turboquant

    @classmethod
    def supports_combination(cls, head_size: int, dtype: Any, kv_cache_dtype: Any, *given: Any, **named: Any) -> str | None:
        reason = super().supports_combination(head_size)
        if reason or kv_cache_dtype not in TQ_PRESETS:
            return reason
        held, most = _head_bytes(head_size), TurboQuantConfig.from_cache_dtype(kv_cache_dtype, head_size).slot_size_aligned
        if held <= most:
            return None
        return f"{VARIABLE}={os.environ[VARIABLE]} takes {held} bytes per token and KV head: expected at most the {most} of {kv_cache_dtype}"


@dataclass
class Prompts:
    """Requests of a step with several query tokens each, or as many of them as decoded keys have room for."""

    tokens: slice
    """Their rows of the step."""
    queries: list[int]
    """Query tokens of each."""
    lengths: list[int]
    """Tokens of each, those of this step included."""
    query_starts: Tensor
    key_starts: Tensor
    table: Tensor
    cached: Tensor
    """Tokens of each that earlier steps have encoded."""
    fresh: Tensor | None
    """Rows of this step's keys among all keys. None if all keys are of this step."""
    exact: tuple[Tensor, Tensor] | None
    """Places of exact tokens of earlier steps, and their rows among all keys. A token without a place goes to the row after these."""


@dataclass
class View:
    """What the rows of decoded tokens see, in layers with one window."""

    plan: Tensor
    seen: Seen | None
    main: tuple[Any, Any, Any] | None
    """The numbers of the rows as arrays, in main memory. All these layers read them."""
    places: Any
    """The places of exact tokens that the rows see, as an array in main memory."""


@dataclass
class TqkvMetadata(AttentionMetadata):
    """A step: first decoded tokens, in the order of their rows, then prompts."""

    decodes: int
    """Rows of decoded tokens. A request with drafted tokens has several."""
    slots: Tensor
    """Where the codes of each token of the step go. Padding is below 0."""
    table: Tensor
    """The blocks of each row."""
    kept: Tensor | None
    """Where each token of the step goes in the rows of exact ones."""
    views: dict[int | None, View]
    """By the window of layers, which is None if they see all tokens."""
    prompts: list[Prompts]


class TqkvBuilder(AttentionMetadataBuilder[TqkvMetadata]):
    """Plans a step on the device, once for all layers. Nothing is read back from there."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        scheduler = vllm_config.scheduler_config
        if scheduler.max_num_batched_tokens > MOST_TOKENS:
            raise TqkvError(f"max_num_batched_tokens {scheduler.max_num_batched_tokens} is not valid: expected at most {MOST_TOKENS}")
        layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase, layer_names)  # type: ignore[type-abstract]
        kinds = {(layer.impl.layout, layer.impl.exact_window, layer.impl.units) for layer in layers.values()}  # type: ignore[attr-defined]
        if len(kinds) > 1:
            raise TqkvError("layers with unlike numbers of heads are not valid: expected a model whose layers have the same heads")
        [(self.layout, exact, count)] = kinds
        # Layers with a window share blocks with the others where vLLM frees no block that has left it.
        windows = {layer.impl.window for layer in layers.values()}  # type: ignore[attr-defined]
        drafts = self.reorder_batch_threshold or 1
        rows = max([scheduler.max_num_seqs, *(vllm_config.compilation_config.cudagraph_capture_sizes or [])]) * drafts
        # A graph holds their addresses.
        self.plans = {window: paged.new_plan(self.layout, rows, device) for window in windows}
        if not paged._is_main(device) and any(layer.impl.merges for layer in layers.values()):  # type: ignore[attr-defined]
            # Nothing may be loaded while a graph is captured.
            paged._kernels(paged._text(self.layout), paged._device(next(iter(self.plans.values())))[0], True)
        self.room = vllm_config.model_config.max_model_len
        self.units = None
        if count:
            self.units = Units(exact, count, rows, max(rows, scheduler.max_num_batched_tokens), BLOCK, device, windows)
            watch_worker(self)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False) -> TqkvMetadata:
        step = common_attn_metadata
        if step.causal is not True:
            raise TqkvError("attention that is not causal is not valid: expected a decoder")
        # The runner has put them first.
        requests, prompts, rows, _ = split_decodes_and_prefills(step, self.reorder_batch_threshold or 1)
        table, lengths = step.block_table_tensor, step.seq_lens
        if rows != requests:
            table, lengths = by_row(step, requests, rows)
        if self.units is not None:
            self.units.begin(step.slot_mapping, new_tokens(step, requests, rows), table, lengths, rows)
        table, kept = table[:rows], None if self.units is None else self.units.kept
        views = {window: self.view(window, table, lengths[:rows]) for window in self.plans if rows}
        groups = self.prompts(step, requests) if prompts else []
        return TqkvMetadata(rows, step.slot_mapping, table, kept, views, groups)

    def view(self, window: int | None, table: Tensor, lengths: Tensor) -> View:
        """Plans rows of these blocks and lengths."""
        rows, plan = len(table), self.plans[window]
        starts = seen = main = places = None
        if self.units is not None:
            seen = self.units.seen[window]
            lengths, starts = seen.ends[:rows], seen.starts[:rows]
        elif window is not None:
            starts = (lengths - window).clamp(min=0)
        paged.plan(self.layout, lengths, plan, max_tokens=table.shape[1] * BLOCK, starts=starts)
        if paged._is_main(plan.device):
            main = paged._step_main(table, plan, rows)
            places = None if seen is None else seen.places[:rows].numpy()
        return View(plan, seen, main, places)

    def prompts(self, step: CommonAttentionMetadata, first: int) -> list[Prompts]:
        """Prompts from request `first` on, in groups whose keys have room together."""
        assert step.seq_lens_cpu_upper_bound is not None
        starts = step.query_start_loc_cpu.tolist()
        lengths = step.seq_lens_cpu_upper_bound.tolist()
        # Requests that only fill a batch up have no token.
        end = next((i for i in range(first, step.num_reqs) if starts[i] == starts[i + 1]), step.num_reqs)
        groups = []
        while first < end:
            last, keys = first + 1, lengths[first]
            while last < end and keys + lengths[last] <= self.room:
                keys += lengths[last]
                last += 1
            groups.append(group(step, starts[first : last + 1], lengths[first:last], slice(first, last), self.units))
            first = last
        return groups


def cache_memory(config: VllmConfig) -> int:
    """About how many bytes vLLM has for codes, since it has not yet measured what else takes memory."""
    if config.cache_config.kv_cache_memory_bytes is not None:
        return config.cache_config.kv_cache_memory_bytes
    return int(current_platform.get_device_total_memory() * config.cache_config.gpu_memory_utilization)


def units(exact: Window, layout: paged.Layout, config: VllmConfig) -> int:
    """Units of a layer. Drafted tokens may begin one more before the oldest of the newest is left."""
    layers = config.model_config.get_num_layers(config.parallel_config)
    request_bytes = layers * exact.columns * 2 * layout.num_kv_heads * layout.head_dim * config.model_config.dtype.itemsize
    most = config.scheduler_config.max_num_seqs
    count = requests(most, request_bytes, cache_memory(config))
    if exact.units and count < most:
        logger.info_once(f"tqkv: {count} of {most} requests have exact tokens at a time, and others attend to codes alone; {EXACT} says how many")
    return (exact.units + (exact.newest > 0 and config.speculative_config is not None)) * count


def by_row(step: CommonAttentionMetadata, requests: int, rows: int) -> tuple[Tensor, Tensor]:
    """Blocks and lengths of each row of the first requests, which have drafted tokens, then of the other requests."""
    starts, lengths = step.query_start_loc, step.seq_lens
    # Its number of rows is given, so that nothing waits for it.
    of_row = torch.repeat_interleave(torch.arange(requests, device=starts.device), starts[: requests + 1].diff(), output_size=rows)
    behind = starts[of_row + 1] - 1 - torch.arange(rows, device=starts.device)
    of_rows = lengths[of_row] - behind.to(lengths.dtype)
    table = step.block_table_tensor
    return torch.cat([table[of_row], table[requests:]]), torch.cat([of_rows, lengths[requests:]])


def new_tokens(step: CommonAttentionMetadata, requests: int, rows: int) -> Tensor:
    """How many tokens of each row are new: one of each of the first rows, and those of the other requests."""
    queries = step.query_start_loc.diff()
    return queries if rows == requests else torch.cat([queries.new_ones(rows), queries[requests:]])


def group(step: CommonAttentionMetadata, starts: Sequence[int], lengths: list[int], requests: slice, units: Units | None) -> Prompts:
    """Prompts of these requests, whose query tokens begin at `starts`, with one more for the end of the last."""
    queries = [end - start for start, end in zip(starts, starts[1:])]
    query_starts = step.query_start_loc[requests.start : requests.stop + 1] - step.query_start_loc[requests.start]
    on_device = step.seq_lens[requests]
    key_starts = F.pad(torch.cumsum(on_device, 0, dtype=torch.int32), (1, 0))
    cached, table = on_device - query_starts.diff(), step.block_table_tensor[requests]
    fresh = exact = None
    if queries != lengths:
        rows = sum(queries)
        # Its number of rows is given, so that nothing waits for it.
        behind = torch.repeat_interleave(key_starts[:-1] + cached - query_starts[:-1], query_starts.diff(), output_size=rows)
        fresh = behind.long() + torch.arange(rows, device=behind.device)
        if units is not None:
            places, of_token = units.earlier(table, cached)
            exact = places, torch.where(of_token < 0, sum(lengths), of_token + key_starts[:-1, None])
    return Prompts(slice(starts[0], starts[-1]), queries, lengths, query_starts, key_starts, table, cached, fresh, exact)


class TqkvImpl(AttentionImpl[TqkvMetadata]):
    """Attention of a layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
        **more: Any,
    ) -> None:
        config = get_current_vllm_config()
        is_main = paged._is_main(torch.device(current_platform.device_type))
        refused = {
            "ALiBi": alibi_slopes is not None,
            # The kernels of a GPU have none.
            f"a soft cap of {logits_soft_cap}": bool(logits_soft_cap) and not is_main,
            f"attention of the type {attn_type}": attn_type != AttentionType.DECODER,
            f"keys and values of the layer {kv_sharing_target_layer_name}": kv_sharing_target_layer_name is not None,
        }
        for what, wrong in refused.items():
            if wrong:
                raise TqkvError(f"{what} is not valid: expected causal attention of a decoder over its own tokens")
        refuse_arguments("vLLM's attention", more, (), "a model without it")
        # A CPU platform does not ask the back end.
        if connector := refused_connector(config):
            raise TqkvError(f"{connector} is not valid: expected blocks copied as they lie, by {', '.join(CONNECTORS)}")
        self.num_heads, self.head_size, self.scale, self.window = num_heads, head_size, float(scale), sliding_window
        self.num_kv_heads, self.kv_cache_dtype, self.sinks = num_kv_heads or num_heads, kv_cache_dtype, sinks
        self.soft_cap = logits_soft_cap or None
        self.layout, self.exact_window = _policy(num_heads, self.num_kv_heads, head_size)
        # Says at once what has no kernels.
        self.layout.block_bytes(current_platform.device_type)
        self.memory: tuple[int, Tensor, Any] | None = None
        self.text = paged._text(self.layout)
        self.blocks = paged._blocks_of(self.text) if is_main else None
        self.room = config.model_config.max_model_len
        self.units = units(self.exact_window, self.layout, config)
        self.exact: Rows | None = None
        self.merges = self.units > 0 or sinks is not None
        """True if attention takes more than codes."""
        if self.units and config.parallel_config.use_ubatching:
            # Each part of a batch has a builder, which would give the same rows away.
            raise TqkvError(f"a batch in parts (enable_dbo) is not valid with exact tokens: expected {EXACT}=0")
        self.flash = None
        if fa_utils.is_flash_attn_varlen_func_available() and config.model_config.dtype != torch.float32:
            version = fa_utils.get_flash_attn_version(head_size=head_size)
            self.flash = {} if version is None else {"fa_version": version}

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: TqkvMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        refuse_arguments("vLLM's attention", {"output_scale": output_scale, "output_block_scale": output_block_scale}, (), "results that are not quantized")
        if attn_metadata is None:
            # vLLM measures here what a step may take in addition to the cache.
            _ = [self._keys(query, self.room) for _ in range(2)]
            self._exact(key)
            return output.fill_(0)
        (pages, pool), step = self._memory(kv_cache), attn_metadata
        out = output.view(-1, self.num_heads, self.head_size)
        self._store(key, value, pages, pool, step)
        if step.decodes:
            self._decode(query[: step.decodes], pages, pool, step.table, step.views[self.window], out[: step.decodes])
        for prompts in step.prompts:
            of = prompts.tokens
            out[of] = self._prompts(query[of], key[of], value[of], pages, prompts)
        return output

    def _exact(self, key: Tensor) -> Rows:
        if self.exact is None:
            self.exact = Rows(self.units, key)
        return self.exact

    def _store(self, key: Tensor, value: Tensor, pages: Tensor, pool: Any, step: TqkvMetadata) -> None:
        """Encodes the tokens of a step, and keeps those that are exact."""
        slots = step.slots[: len(key)]
        key, value = key[: len(slots)], value[: len(slots)]
        exact = None if step.kept is None else self._exact(key)
        if pool is None:
            kept = None if exact is None else exact.at(step.kept[: len(slots)])  # type: ignore[index]
            return paged.store_now(key, value, slots, pages, None, self.text, kept)
        rows = (paged._array(name, x, x, x.dtype) for name, x in (("k", key), ("v", value)))
        self.blocks.store(*rows, paged._array("places", slots, slots, torch.int64), pool)
        if exact is not None:
            exact.keep(key, value, step.kept)  # type: ignore[arg-type]

    def _memory(self, kv_cache: Tensor) -> tuple[Tensor, Any]:
        """Blocks of a layer as runs of bytes, since vLLM's axes within a block are not ours, and in main memory as an array too. The memory
        stays where it is, so both are made once."""
        if self.memory is None or self.memory[0] != kv_cache.data_ptr():
            pages = kv_cache.as_strided((kv_cache.shape[0], kv_cache[0].numel()), (kv_cache.stride(0), 1))
            self.memory = kv_cache.data_ptr(), pages, None if self.blocks is None else paged._pool(self.layout, pages)
        return self.memory[1:]

    def _decode(self, q: Tensor, pages: Tensor, pool: Any, table: Tensor, view: View, out: Tensor) -> None:
        if view.main is not None:
            exact = None if view.seen is None else (*self._exact(q).arrays, view.places, self._exact(q).places)
            sinks = None if self.sinks is None else paged._array("sinks", self.sinks.float(), q, torch.float32)
            out.copy_(paged._attend_main(self.blocks, q, pool, view.main, None, exact, sinks, self.scale, self.soft_cap))
            return
        seen = None if view.seen is None else self._exact(q).at(view.seen.places[: len(q)])
        paged.attend_now(q, pages, table, view.plan, self.text, out=out, scale=self.scale, exact=seen, sinks=self.sinks)

    def _keys(self, like: Tensor, tokens: int) -> Tensor:
        return torch.empty(tokens, self.num_kv_heads, self.head_size, dtype=like.dtype, device=like.device)

    def _whole(self, fresh: Tensor, pages: Tensor, of: Prompts, values: bool) -> Tensor:
        """Keys, or values, of all tokens of requests: first those that were encoded, then those of this step."""
        if of.fresh is None:
            return fresh
        out = self._keys(fresh, sum(of.lengths) + 1)
        paged.gather(self.layout, pages, of.table, of.key_starts, of.cached, out[:-1], values=values)
        if of.exact is not None and self.exact is not None:
            places, rows = of.exact
            out.index_copy_(0, rows.flatten(), self.exact.of(places.flatten(), int(values)).transpose(0, 1))
        return out[:-1].index_copy_(0, of.fresh, fresh)

    def _prompts(self, q: Tensor, k: Tensor, v: Tensor, pages: Tensor, of: Prompts) -> Tensor:
        k, v = self._whole(k, pages, of, False), self._whole(v, pages, of, True)
        if self.flash is None:
            parts = zip(q.split(of.queries), k.split(of.lengths), v.split(of.lengths))
            return torch.cat([attention(*part, self.scale, self.window, self.sinks, self.soft_cap) for part in parts])
        out, lse = fa_utils.flash_attn_varlen_func(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=of.query_starts,
            cu_seqlens_k=of.key_starts,
            max_seqlen_q=max(of.queries),
            max_seqlen_k=max(of.lengths),
            softmax_scale=self.scale,
            causal=True,
            window_size=None if self.window is None else [self.window - 1, 0],
            return_softmax_lse=True,
            **self.flash,
        )
        return less_sinks(out, lse.transpose(0, 1), self.sinks)


def less_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """Takes the weight of learned sinks, logits without a value, from what attention gave without them."""
    if sinks is None:
        return out
    return out * (lse - sinks.float()).sigmoid().to(out.dtype)[..., None]


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, sinks: Tensor | None, soft_cap: float | None = None
) -> Tensor:
    """Attention of the newest tokens of a sequence, `[tokens, heads, head_dim]`, each of which sees the tokens up to itself, or the newest
    `window` of them."""
    count = len(q)
    if window is not None:
        # No query sees further back.
        k, v = (x[-(window + count - 1) :] for x in (k, v))
    sees_all = window is None or len(k) <= window
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    if q.is_cpu and sees_all and soft_cap is None:
        out, lse = causal(q, k, v, scale)
        return less_sinks(out.transpose(0, 1), lse.transpose(0, 1), sinks)
    older, rows = k.shape[1] - count, max(1, MASK // k.shape[1])
    if count > rows:
        # A mask of all queries would take more memory than vLLM leaves.
        ends = [(first, min(first + rows, count)) for first in range(0, count, rows)]
        of = [[x.transpose(0, 1) for x in (q[:, first:end], k[:, : older + end], v[:, : older + end])] for first, end in ends]
        return torch.cat([attention(*part, scale, window, sinks, soft_cap) for part in of])
    sees = torch.ones(count, k.shape[1], dtype=torch.bool, device=q.device).tril(older)
    if not sees_all:
        sees = sees.triu(older - window + 1)
    bias = torch.zeros(count, k.shape[1], dtype=q.dtype, device=q.device).masked_fill_(~sees, -torch.inf)[None]
    if sinks is not None:
        # A key of zeros has the logit that the bias says.
        k, v = (F.pad(x, (0, 0, 1, 0)) for x in (k, v))
        bias = torch.cat([sinks.to(bias.dtype)[:, None, None].expand(-1, count, 1), bias.expand(len(sinks), -1, -1)], -1)
    if soft_cap is not None:
        return capped(q, k, v, bias, scale, soft_cap).transpose(0, 1)
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=bias[None], scale=scale, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention, `[heads, tokens, head_dim]`, in main memory, and the logarithms of the sums, `[heads, tokens]`. All queries see the older tokens,
    so that those need no mask, and PyTorch's kernel has one for the others. A mask in memory takes half as long again."""
    older = k.shape[1] - q.shape[1]
    k, v = (x.repeat_interleave(len(q) // len(x), 0)[None] for x in (k, v))
    kernel = functools.partial(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, q[None], scale=scale)
    out, lse = kernel(k[:, :, older:], v[:, :, older:], is_causal=True)
    if older:
        of_older, of_lse = kernel(k[:, :, :older], v[:, :, :older])
        weight = (lse - of_lse).sigmoid()[..., None]
        out, lse = torch.lerp(of_older.float(), out.float(), weight).to(q.dtype), torch.logaddexp(lse, of_lse)
    return out[0], lse[0]


def capped(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, soft_cap: float) -> Tensor:
    """Attention, `[heads, tokens, head_dim]`, whose logits l become cap * tanh(l / cap), which PyTorch's has not. As many queries go together
    as keep the logits of a head small."""
    out, rows = torch.empty_like(q), max(1, (1 << 20) // k.shape[1])
    for head, of in enumerate(out):
        keys, values = (x[head * len(x) // len(q)] for x in (k, v))
        for first in range(0, q.shape[1], rows):
            part = slice(first, first + rows)
            logits = (q[head, part] @ keys.T).float() * scale
            logits = soft_cap * (logits / soft_cap).tanh() + bias[head % len(bias), part]
            of[part] = logits.softmax(-1).to(values.dtype) @ values
    return out
