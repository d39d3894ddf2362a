"""Attention on codes in a model under `torch.compile`: one operator per layer, into which the compiler does not look.

While a model is traced, a layer hands its new keys and values on as they are, and attention gives them to the operator, which appends them
and attends as in a model that is not compiled. Nothing else may compute with them, because the older ones are not there.
"""

from __future__ import annotations

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch

from ._native import TqkvError

_LAYERS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The layers that a graph may name. A graph takes the number of its layer as a tensor, so that it serves every cache."""

_numbers = itertools.count()

_handed_on: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
"""While a model is traced: the number of the layer whose new keys and values are on their way to attention, and these."""

OTHERS = "expected attn_implementation 'sdpa', or a model that is not compiled"


def number(layer: Any) -> torch.Tensor:
    """A new number for a layer."""
    new = next(_numbers)
    _LAYERS[new] = layer
    return torch.tensor(new)


def hand_on(layer: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Says whose keys and values the next attention gets."""
    if _handed_on:
        _handed_on.clear()
        raise TqkvError(f"a compiled model that does not attend to the keys and values of its cache is not valid with 'tqkv': {OTHERS}")
    _handed_on.append((layer, keys, values))
    return keys, values


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    how: tuple[float, float | None, torch.Tensor | None, bool],
) -> torch.Tensor | None:
    """Attention on the codes of the layer that has handed its keys and values on; None if none has."""
    if not _handed_on:
        return None
    layer, of_layer = _handed_on[-1][0], _handed_on[-1][1:]
    _handed_on.clear()
    if keys is not of_layer[0] or values is not of_layer[1]:
        raise TqkvError(f"a compiled model that computes with keys or values before it attends is not valid with 'tqkv': {OTHERS}")
    scaling, softcap, sinks, causal = how
    return _attend(layer, query, keys, values, mask, scaling, softcap, sinks, causal)


# Its Python code runs at each call, which a captured graph of CUDA would leave out.
@torch.library.custom_op("tqkv::layer_attend", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _attend(
    layer: torch.Tensor,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    causal: bool,
) -> torch.Tensor:
    return _LAYERS[int(layer)].attend_new(query, keys, values, mask, (scaling, softcap, sinks, causal)).contiguous()


@_attend.register_fake
def _(layer: Any, query: torch.Tensor, keys: Any, values: torch.Tensor, *more: Any) -> torch.Tensor:
    batch, heads, tokens, _ = query.shape
    return query.new_empty(batch, tokens, heads, values.shape[-1])


def _refuse_gradients(context: Any, *gradients: Any) -> None:
    raise TqkvError("gradients of a compiled model are not valid with attn_implementation 'tqkv': expected torch.no_grad(), or 'sdpa'")


_attend.register_autograd(_refuse_gradients)


def seen_by(mask: torch.Tensor) -> torch.Tensor | None:
    """The tokens that rows see, `[batch, tokens]`, if the mask is causal attention to them; None otherwise."""
    if mask.dtype != torch.bool or mask.dim() != 4:
        return None
    newest = mask[:, 0, -1]
    count, total = mask.shape[-2:]
    if count > 1:
        causal = torch.ones(count, total, dtype=torch.bool, device=mask.device).tril(total - count)
        if not bool((mask == (newest[:, None, None] & causal)).all()):
            return None
    return newest
