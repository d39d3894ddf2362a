"""The attention "tqkv" of Transformers: attention on codes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from . import _tf_compiled as compiled
from ._hosts import refuse_arguments, says_nothing
from ._native import TqkvError

NAME = "tqkv"

PROMPT = 8
"""From this many query tokens on, keys are decoded once for all of them."""

SDPA = frozenset(inspect.signature(sdpa_attention_forward).parameters) - {"kwargs"}
"""Arguments that "sdpa" has by name. Codes know fewer of them, so some have decoded keys."""

HARMLESS = frozenset(
    # The mask and RoPE have them already.
    ("sliding_window", "position_ids", "cache_position", "token_type_ids", "mm_token_type_ids")
    # They say what a model returns or how it computes its loss, and nothing about attention.
    + ("use_cache", "return_dict", "output_hidden_states", "output_router_logits", "num_items_in_batch", "logits_to_keep")
    # They choose among kernels of flash attention.
    + ("deterministic",)
)
"""Arguments of attention functions that change no result here."""

MASKS = frozenset(inspect.signature(sdpa_mask).parameters) - {"kwargs", "local_size"} | {"dtype", "config"}
"""Arguments of masks, those for other implementations included, that leave the mask of `causal_mask_function` one of causal attention after padding."""


OTHERS = "attn_implementation 'sdpa' or 'eager'"


@dataclass(eq=False)
class NewTokens:
    """Keys and values of new tokens, `[batch, num_kv_heads, tokens, dim]`, and the layer that holds the older ones."""

    layer: Any
    keys: torch.Tensor
    values: torch.Tensor
    appended: bool = False
    """True once the layer holds the new tokens."""
    decoded: tuple[torch.Tensor, torch.Tensor] | None = None
    """Keys and values of all tokens, once a use has needed them."""

    def handles(self) -> tuple[Handle, Handle]:
        return Handle.of(self, 0), Handle.of(self, 1)


class Handle(torch.Tensor):
    """New keys or values on their way to `tqkv_attention`. Any other computation on them would miss the older ones, so it gets the
    decoded ones of all tokens. Layers that share keys and values pass the same handles."""

    new: NewTokens
    side: int
    """0 for keys, 1 for values."""

    @classmethod
    def of(cls, new: NewTokens, side: int) -> Handle:
        handle = (new.values if side else new.keys).as_subclass(cls)
        handle.new, handle.side = new, side
        return handle

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "dim"):
            with torch._C.DisableTorchFunctionSubclass():
                found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Size):
                return args[0].of_all_tokens(found)
            # Attributes as `mT` are computations too.
            if not isinstance(found, torch.Tensor):
                return found
        if name == "size":
            dim = args[1] if len(args) > 1 else (kwargs or {}).get("dim")
            return args[0].shape if dim is None else args[0].shape[dim]
        args, kwargs = tree_map(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)

    def of_all_tokens(self, shape: torch.Size) -> torch.Size:
        """The shape of all tokens in the place of that of the new ones."""
        return torch.Size([*shape[:-2], self.new.layer.length, shape[-1]])


def _whole(x: Any) -> Any:
    """The decoded keys or values of all tokens in the place of a handle."""
    return x.new.layer.used_outside(x.new)[x.side] if isinstance(x, Handle) else x


def tqkv_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention on the codes of a `TqkvCache`. Other keys and values use "sdpa", whose first arguments have the same order.

    `s_aux` are learned sinks (gpt-oss), a logit per query head. `indices` are the tokens that an indexer has chosen for each query (DeepSeek V3.2 and its kin), `[batch, tokens, count]`."""
    refuse_arguments("attention 'tqkv'", kwargs, HARMLESS | SDPA, OTHERS)
    # What "sdpa" knows and codes do not, as biases of positions.
    more = {name: x for name, x in kwargs.items() if name in SDPA and not says_nothing(x)}
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if torch.compiler.is_compiling():
        found = compiled.attend(query, key, value, attention_mask, (scaling, softcap, s_aux, causal))
        if found is not None:
            if more or dropout or indices is not None:
                named = ", ".join([*more, *(["dropout"] if dropout else []), *([] if indices is None else ["indices"])])
                raise TqkvError(f"{named} of a compiled model is not valid with attn_implementation 'tqkv': {compiled.OTHERS}")
            return found, None
    if isinstance(key, Handle) and isinstance(value, Handle):
        # Without a mask, only the module tells whether a token sees later ones. Codes have causal attention.
        if attention_mask is None and query.shape[2] > 1 and not causal:
            raise TqkvError("attn_implementation 'tqkv' is not valid for attention that is not causal: expected 'sdpa' or 'eager'")
        new, layer = key.new, key.new.layer
        has_sinks = layer.has_sinks(s_aux)
        reasons = {
            "it has learned sinks that came after the first tokens": not has_sinks,
            "it chooses tokens (the argument indices)": indices is not None,
            f"it has the argument {next(iter(more), '')}": bool(more),
            "it has dropout": bool(dropout),
            f"it has the soft cap {softcap} and the cache another one": softcap != layer.options.get("soft_cap"),
        }
        why = next((reason for reason, holds in reasons.items() if holds), None)
        out = layer.attend(query, new, attention_mask, scaling) if why is None else None
        if out is not None:
            return out, None
        layer.count_decoded(query.shape[2], why)
        key, value = layer.all_tokens(new, (query, scaling))
    if indices is not None:
        attention_mask = _chosen(attention_mask, indices, key.shape[2])
    if softcap is not None or s_aux is not None:
        refuse_arguments("attention 'tqkv' with a soft cap or learned sinks", more, (), OTHERS)
        return _plain(query, key, value, attention_mask, (scaling, softcap, s_aux, dropout, causal)), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=causal, **more
    )


def _chosen(mask: torch.Tensor | None, indices: torch.Tensor, total: int) -> torch.Tensor:
    """A mask without the tokens that are not chosen, as the models make it for "sdpa"."""
    if mask is None or indices.dim() != 3:
        raise TqkvError(f"argument indices of attention 'tqkv' is not valid without a mask or with {indices.dim()} axes: expected {OTHERS}")
    chosen = torch.zeros(*indices.shape[:2], total, dtype=torch.bool, device=indices.device).scatter(-1, indices.long(), True)[:, None]
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def _plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    how: tuple[float, float | None, torch.Tensor | None, float, bool],
) -> torch.Tensor:
    """Attention with a soft cap of the logits or learned sinks, over keys and values that are decoded or were never compressed."""
    scaling, softcap, sinks, dropout, causal = how
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    logits = query @ key.transpose(2, 3) * scaling
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if mask is None and causal:
        tokens, total = logits.shape[-2:]
        mask = torch.ones(tokens, total, dtype=torch.bool, device=query.device).tril(total - tokens)
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    if sinks is not None:
        column = sinks.to(logits.dtype).reshape(1, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, column], dim=-1)
    weights = logits.softmax(-1, dtype=torch.float32).nan_to_num().to(query.dtype)
    weights = weights if sinks is None else weights[..., :-1]
    weights = torch.nn.functional.dropout(weights, dropout)
    return (weights @ value).transpose(1, 2).contiguous()


def _mask(
    *, batch_size: int, mask_function: Any = causal_mask_function, attention_mask: Any = None, **kwargs: Any
) -> torch.Tensor | None:
    """The mask of "sdpa". If it is causal after padding on the left, it also holds the padding of each row."""
    if attention_mask is not None and is_on_device(attention_mask) and kwargs.get("kv_length", 0) > kwargs.get("q_length", 0):
        # To see if a mask can be left out, the library waits for the device.
        kwargs["allow_is_causal_skip"] = False
    mask = sdpa_mask(
        batch_size=batch_size, mask_function=mask_function, attention_mask=attention_mask, **kwargs
    )
    if torch.compiler.is_compiling():
        # The layer looks at the mask itself.
        return mask
    if mask is not None:
        mask.padding = attention_mask
    if mask is not None and mask_function is causal_mask_function and all(name in MASKS or says_nothing(x) for name, x in kwargs.items()):
        if attention_mask is None:
            mask.left_padding = [0] * batch_size
        else:
            mask.seen = attention_mask
    return mask


def is_on_device(tensor: torch.Tensor) -> bool:
    """True if a tensor is on a GPU that may hold the pages."""
    return tensor.is_cuda


def left_padding(mask: torch.Tensor) -> list[int] | None:
    """Padding of each row, if the mask is causal attention after it. It waits for the device of the mask, once."""
    if not hasattr(mask, "left_padding"):
        mask.left_padding = None if getattr(mask, "seen", None) is None else _left_padding(mask.seen.bool())
    return mask.left_padding


def padding(mask: torch.Tensor) -> list[int] | None:
    """Padding of each row, also if the mask shows something else than causal attention after it; None if it is not known."""
    if (known := left_padding(mask)) is not None or not hasattr(mask, "padding"):
        return known
    return [0] * len(mask) if mask.padding is None else _left_padding(mask.padding.bool())


def _left_padding(seen: torch.Tensor) -> list[int] | None:
    pads = seen.shape[-1] - seen.sum(-1)
    # All padding must come before the first token.
    is_left = bool((seen == (torch.arange(seen.shape[-1], device=seen.device) >= pads[:, None])).all())
    return pads.tolist() if is_left else None


AttentionInterface.register(NAME, tqkv_attention)
AttentionMaskInterface.register(NAME, _mask)
