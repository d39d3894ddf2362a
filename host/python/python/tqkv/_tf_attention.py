"""The attention "tqkv" of Transformers: attention on codes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from ._native import TqkvError

NAME = "tqkv"


class Handle(torch.Tensor):
    """New keys or values on their way to `tqkv_attention`, with the layer that holds the older ones. Any other computation on them would
    miss the older ones, and is refused. Layers that share keys and values pass the same handles."""

    layer: Any
    states: torch.Tensor
    appended: bool
    """True once the layer holds the new tokens."""
    decoded: tuple[torch.Tensor, torch.Tensor] | None
    """Keys and values of all tokens, once a use has needed them."""

    @classmethod
    def of(cls, states: torch.Tensor, layer: Any) -> Handle:
        handle = states.as_subclass(cls)
        handle.layer, handle.states = layer, states
        handle.appended, handle.decoded = False, None
        return handle

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "size", "dim"):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if name == "_is_view" or torch.compiler.is_compiling():
            raise TqkvError("torch.compile is not valid with attn_implementation 'tqkv': expected 'sdpa', or a model that is not compiled")
        raise TqkvError(
            f"attn_implementation 'tqkv' is not valid for this model, which uses keys or values outside attention ({name}): expected 'sdpa' or 'eager'"
        )


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
        raise TqkvError("attn_implementation 'tqkv' is not valid for learned sinks: expected 'eager', which a TqkvCache allows as well")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if isinstance(key, Handle):
        # Without a mask, only the module tells whether a token sees later ones. Codes have causal attention.
        if attention_mask is None and query.shape[2] > 1 and not getattr(module, "is_causal", True):
            raise TqkvError("attn_implementation 'tqkv' is not valid for attention that is not causal: expected 'sdpa' or 'eager'")
        value = value.states
        out = key.layer.attend(query, key, value, attention_mask, scaling)
        if out is not None:
            return out, None
        key, value = key.layer.all_tokens(key, value)
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
