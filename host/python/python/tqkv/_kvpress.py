"""The pipeline of kvpress over a compressed cache."""

from __future__ import annotations

from typing import Any, Callable

import torch
from kvpress.pipeline import KVPressTextGenerationPipeline

from ._native import TqkvError
from .transformers import TqkvCache


class CodedPipeline(KVPressTextGenerationPipeline):
    """Answers questions about a context, which every question reads as codes."""

    def __init__(self, model: Any, tokenizer: Any, new_cache: Callable[[], TqkvCache]) -> None:
        super().__init__(model=model, tokenizer=tokenizer)
        self.new_cache = new_cache

    def _forward(self, input_tensors: Any, press: Any = None, cache: Any = None, **options: Any) -> list[str]:
        if press is not None or cache is not None:
            raise TqkvError("a press or a cache is not valid here: expected none, because each context has a TqkvCache, which drops no tokens")
        answers: list[str] = super()._forward(input_tensors, cache=self.new_cache(), **options)
        return answers

    def generate_answer(self, question_ids: torch.Tensor, cache: TqkvCache, **options: Any) -> str:
        """A question has a copy of the context's cache, which the next one finds as it was."""
        answer: str = super().generate_answer(question_ids, cache.fork(), **options)
        return answer

    def _remove_answer_from_cache(self, cache: Any, cache_seq_lengths: list[int]) -> None:
        """Nothing to do: the answer is in a copy."""
