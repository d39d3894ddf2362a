"""A compressed KV cache for models of Hugging Face Transformers.

    from tqkv.transformers import TqkvCache
    model.generate(**inputs, past_key_values=TqkvCache(model.config, kv="t4,t3"))

By default every attention implementation works: keys and values are decoded for each forward pass, as in the library's own quantised
caches. Importing this module registers `attn_implementation="tqkv"` (`from_pretrained`, or `model.set_attn_implementation("tqkv")`).
With it generated tokens attend on codes, and older tokens are decoded only for a prompt in several pieces.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from ._arrays import dtype_name
from ._cache import KvCache
from ._native import TqkvError

__all__ = ["TqkvCache", "TqkvLayer"]

NAME = "tqkv"

# From this many query tokens on, keys are decoded once for all of them.
PROMPT = 8


class TqkvCache(DynamicCache):
    """A cache for the argument `past_key_values`. Layers of full attention are compressed, others are the library's own.

    `kv` is the text of `tqkv.KvCache`: "t4,t3", or "t4,t2 hot=32 last:i8". `layers` names the codecs of each layer, in its place. The
    further options are those of `tqkv.KvCache`. Each row of a batch is a cache of its own, and rows that began alike share their
    memory.
    """

    def __init__(
        self, config: Any, kv: str = "t4,t3", *, layers: Sequence[str] | None = None, **options: Any
    ) -> None:
        super().__init__(config=config)
        decoder = config.get_text_config(decoder=True)
        options = {"soft_cap": getattr(decoder, "attn_logit_softcapping", None), **options}
        # Each layer is a cache of its own, so rules for layers are followed here.
        codecs = KvCache(len(self.layers), 1, 64, kv).layer_codecs if layers is None else list(layers)
        if len(codecs) != len(self.layers):
            raise TqkvError(f"codecs of {len(codecs)} layers for a model of {len(self.layers)}")
        for i, (layer, of) in enumerate(zip(self.layers, decoder.per_layer_config)):
            # Subclasses are left out: they keep more than keys and values, or fewer tokens.
            if type(layer) is DynamicLayer:
                own = {"kv": kv, "layers": [codecs[i]], "num_heads": of.num_attention_heads, **options}
                # Before a model runs: what no cache can be is refused here.
                KvCache(1, own["num_heads"], 64, **own)
                self.layers[i] = TqkvLayer(decoder, own)

    def stats(self) -> dict[str, float]:
        """Tokens, allocated bytes of keys and values, their bytes at 16 bits per value, and the ratio of the two."""
        held, plain = 0, 0
        for layer in self.layers:
            if isinstance(layer, TqkvLayer):
                held += sum(row.stats()["allocated_bytes"] for row in layer.rows)
                plain += 2 * layer.token_values * sum(len(row) for row in layer.rows)
            elif isinstance(layer, CacheLayerMixin) and layer.keys is not None:
                held += layer.keys.nbytes + layer.values.nbytes
                plain += 2 * (layer.keys.numel() + layer.values.numel())
        tokens = self.get_seq_length()
        return {"tokens": tokens, "bytes": held, "f16_bytes": plain, "ratio": plain / held if held else 1.0}


class TqkvLayer(CacheLayerMixin):
    """One layer of full attention, with a `tqkv.KvCache` per row of the batch."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, config: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.config, self.options = config, options
        self.reset()

    def reset(self) -> None:
        self.is_initialized = False
        self.length = 0
        self.token_values = 0
        self.rows: list[KvCache] = []
        # Number of padding tokens at the start of each row. They are not stored.
        self.pads: list[int] = []

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads, _, head_dim = key_states.shape
        value_dim = value_states.shape[-1]
        self.dtype, self.device = key_states.dtype, key_states.device
        self.token_values = heads * (head_dim + value_dim)
        first = KvCache(1, heads, head_dim, value_dim=value_dim, **self.options)
        self.rows = [first] + [first.fork() for _ in range(1, batch)]
        self.pads = [0] * batch
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values to attend to: those of all tokens. For attention on codes, the new ones and a handle of this layer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if len(key_states) != len(self.rows):
            raise TqkvError(f"a batch of {len(key_states)} for a cache of {len(self.rows)} rows")
        self.length += key_states.shape[-2]
        if self.config._attn_implementation == NAME:
            return _Handle.of(key_states, self), value_states
        return self._take_up(key_states, value_states)

    def _take_up(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends tokens. Returns the older tokens decoded, and the new ones unchanged."""
        tokens = keys.shape[-2]
        past = self._decoded(self.length - tokens)
        for row, pad, k, v in zip(self.rows, self.pads, keys, values):
            first = tokens - self._new(row, pad, tokens)
            row.append(0, k[:, first:].transpose(0, 1), v[:, first:].transpose(0, 1))
        return torch.cat([past[0], keys], dim=-2), torch.cat([past[1], values], dim=-2)

    def _new(self, row: KvCache, pad: int, tokens: int) -> int:
        """Number of the newest tokens that a row does not hold yet. The others are padding."""
        new = max(self.length - pad - len(row), 0)
        if new > tokens:
            raise TqkvError("an earlier forward pass was not finished: reset the cache")
        return new

    def _decoded(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Decoded keys and values of all rows, with zeros for padding."""
        dtype = dtype_name(self.dtype)
        keys, values = ([], [])
        for row in self.rows:
            for into, held in ((keys, row.keys(0, dtype=dtype)), (values, row.values(0, dtype=dtype))):
                tensor = torch.from_numpy(held.view("int16") if dtype == "bfloat16" else held)
                tensor = tensor.view(self.dtype).to(self.device)
                into.append(torch.nn.functional.pad(tensor, (0, 0, length - len(row), 0)))
        return torch.stack(keys), torch.stack(values)

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float,
    ) -> torch.Tensor | None:
        """Appends tokens and attends on codes, `[batch, tokens, num_heads, value_dim]`.

        Appends nothing and returns None for a prompt, for which decoded keys are faster. The same holds for a mask that is not causal
        attention after padding on the left."""
        pads = [0] * len(self.rows) if mask is None else getattr(mask, "left_padding", None)
        if not any(map(len, self.rows)):
            self.pads = pads or [0] * len(self.rows)
        batch, heads, tokens, head_dim = query.shape
        if pads != self.pads or tokens >= PROMPT:
            return None
        out = query.new_zeros(batch, tokens, heads, values.shape[-1])
        # Caches scale by 1 / sqrt(head_dim).
        query = query.float() * (scaling * head_dim**0.5)
        for i, (row, pad) in enumerate(zip(self.rows, self.pads)):
            new = self._new(row, pad, tokens)
            q, k, v = (x[i, :, tokens - new :].transpose(0, 1) for x in (query, keys, values))
            if new:
                out[i, tokens - new :] = row.attend_prefill(0, q, k, v)
        return out

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the newest tokens. Their number is negative, as in the library."""
        if tokens_to_remove > 0:
            raise TqkvError(f"crop({tokens_to_remove}) is not valid: expected 0 or less: minus the tokens to remove")
        self.length = max(self.length + tokens_to_remove, 0)
        self.pads = [min(pad, self.length) for pad in self.pads]
        for row, pad in zip(self.rows, self.pads):
            row.truncate(min(len(row), self.length - pad))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        rows = torch.arange(len(self.rows), device=indices.device)
        self._select(rows[indices].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(len(self.rows)) for _ in range(repeats)])

    def _select(self, indices: list[int]) -> None:
        """Keeps the rows of these indices. A row that occurs more than once is forked."""
        if not self.is_initialized:
            return
        old, taken = self.rows, set()
        self.rows = []
        for index in indices:
            self.rows.append(old[index].fork() if index in taken else old[index])
            taken.add(index)
        self.pads = [self.pads[index] for index in indices]

    def offload(self) -> None:
        """Nothing to do: codes are in main memory."""

    def prefetch(self) -> None:
        """Nothing to do, as for `offload`."""


class _Handle(torch.Tensor):
    """New keys on their way to `tqkv_attention`, with the layer that holds the older ones. Any other computation on them would miss
    the older ones, and is refused."""

    layer: TqkvLayer
    states: torch.Tensor

    @classmethod
    def of(cls, states: torch.Tensor, layer: TqkvLayer) -> _Handle:
        handle = states.as_subclass(cls)
        handle.layer, handle.states = layer, states
        return handle

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "size", "dim"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        raise TqkvError(f"{name} of the keys of a TqkvCache: attn_implementation 'tqkv' is not for this model")


def tqkv_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention on the codes of a `TqkvCache`. Other keys and values use "sdpa"."""
    if s_aux is not None:
        raise TqkvError("attn_implementation 'tqkv' has no learned sinks: 'eager' has, with a TqkvCache as well")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(key, _Handle):
        layer, key = key.layer, key.states
        out = layer.attend(query, key, value, attention_mask, scaling)
        if out is not None:
            return out, None
        key, value = layer._take_up(key, value)
    if softcap is not None:
        return _capped(query, key, value, attention_mask, scaling, softcap), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float,
) -> torch.Tensor:
    """Attention with a soft cap of the logits, for layers that are not compressed."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    logits = softcap * torch.tanh(query @ key.transpose(2, 3) * scaling / softcap)
    if mask is None:
        tokens, total = logits.shape[-2:]
        mask = torch.ones(tokens, total, dtype=torch.bool, device=query.device).tril(total - tokens)
    weights = logits.masked_fill(~mask, -torch.inf).softmax(-1, dtype=torch.float32)
    return (weights.nan_to_num().to(query.dtype) @ value).transpose(1, 2).contiguous()


def _mask(
    *, batch_size: int, mask_function: Any = causal_mask_function, attention_mask: Any = None, **kwargs: Any
) -> torch.Tensor | None:
    """The mask of "sdpa". If it is causal after padding on the left, it also holds the padding of each row."""
    mask = sdpa_mask(
        batch_size=batch_size, mask_function=mask_function, attention_mask=attention_mask, **kwargs
    )
    if mask is not None and mask_function is causal_mask_function:
        if attention_mask is None:
            mask.left_padding = [0] * batch_size
        else:
            seen = attention_mask.bool()
            pads = seen.shape[-1] - seen.sum(-1)
            # All padding must come before the first token.
            if bool((seen == (torch.arange(seen.shape[-1], device=seen.device) >= pads[:, None])).all()):
                mask.left_padding = pads.tolist()
    return mask


AttentionInterface.register(NAME, tqkv_attention)
AttentionMaskInterface.register(NAME, _mask)
