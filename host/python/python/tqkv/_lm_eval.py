"""A model for lm-eval whose every token reads older ones as codes."""

from __future__ import annotations

from typing import Any, Callable

import torch
from lm_eval.models.huggingface import HFLM

from .transformers import TqkvCache


class CodedLM(HFLM):
    """Requests of lm-eval, each batch with a cache of its own, which gets `step` tokens at a time."""

    def __init__(self, model: Any, new_cache: Callable[[], TqkvCache], step: int, **options: Any) -> None:
        super().__init__(pretrained=model, **options)
        self.new_cache, self.step = new_cache, step

    def _model_call(self, inps: torch.Tensor, attn_mask: torch.Tensor | None = None, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of all tokens. Rows are padded on the right, which no token before sees."""
        cache = self.new_cache()
        with torch.no_grad():
            parts = [self.model(part, past_key_values=cache).logits for part in inps.split(self.step, dim=1)]
        return torch.cat(parts, dim=1)

    def _model_generate(self, context: Any, max_length: int, stop: list[str], **options: Any) -> torch.Tensor:
        coded = {"past_key_values": self.new_cache(), "prefill_chunk_size": self.step}
        return super()._model_generate(context, max_length, stop, **coded, **options)
