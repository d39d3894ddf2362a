"""Coded weights in Transformers: coded while a checkpoint is read, and refused where they would be lost."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ._native import SEED, TqkvError
from .weights import ROUTERS, Plan, Weight, weights_of

METHOD = "tqkv"


@register_quantization_config(METHOD)
class TqkvWeights(QuantizationConfigMixin):
    """Codes weights while `from_pretrained` reads them, one at a time: its argument `quantization_config`.

    The options are those of `tqkv.weights.encode`. The attribute `hf_quantizer.plan.report()` of the model says what was coded. Weights
    that are tied, such as embedding and head, are coded after all others are read. A GGUF file is read without it, and coded by `encode`.
    """

    def __init__(
        self,
        codec: str = "t4",
        group: int = 64,
        *,
        head: str | None = "i8",
        skip: Sequence[str] = ROUTERS,
        seed: int = SEED,
        **unknown: Any,
    ) -> None:
        self.quant_method = METHOD  # type: ignore[assignment]
        if unknown.keys() - {"quant_method"}:
            raise TqkvError(f"options {', '.join(sorted(unknown))} are not valid: expected codec, group, head, skip and seed")
        self.codec, self.group, self.head, self.skip, self.seed = codec, group, head, skip, seed
        self.plan()

    def plan(self) -> Plan:
        return Plan(self.codec, self.group, self.head, self.skip, self.seed)


@register_quantizer(METHOD)
class TqkvQuantizer(HfQuantizer):
    """What Transformers asks about a model with coded weights."""

    def __init__(self, quantization_config: Any = None, **kwargs: Any) -> None:
        super().__init__(quantization_config or TqkvWeights(), **kwargs)
        self.plan: Plan = self.quantization_config.plan()  # type: ignore[attr-defined]
        self.ahead: dict[str, Weight] = {}

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        if self.pre_quantized:
            raise TqkvError("a folder of coded weights is not valid: expected the weights, which are coded while they are read")
        places = kwargs.get("device_map")
        places = list(places.values()) if isinstance(places, dict) else [places]
        if any(place is not None and str(place) != "cpu" for place in places):
            raise TqkvError(f"device_map {kwargs['device_map']!r} is not valid for coded weights: expected the CPU")

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        tied = {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}
        for weight in weights_of(model):
            path, _, name = weight.holders[0]
            full = f"{path}.{name}"
            if len(weight.holders) == 1 and full not in tied and self.plan.reason(weight) is None:
                self.ahead[full] = weight

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return param_name in self.ahead

    def get_quantize_ops(self) -> Any:
        return CodeWeight(self)

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        self.plan.run(model)
        return model

    def is_serializable(self) -> Any:
        raise TqkvError(
            "save_pretrained is not valid for coded weights, because from_pretrained would not find them: "
            "expected torch.save(model.state_dict(), path)"
        )

    @property
    def is_trainable(self) -> bool:
        return False


class CodeWeight(ConversionOps):
    """Codes a weight that was just read."""

    def __init__(self, quantizer: TqkvQuantizer) -> None:
        self.quantizer = quantizer

    def convert(
        self, input_dict: dict[str, Any], source_patterns: list[str], target_patterns: list[str], **kwargs: Any
    ) -> dict[str, Any]:
        (value,) = input_dict.values()
        value = value[0] if isinstance(value, list) else value
        weight = self.quantizer.ahead.pop(kwargs["full_layer_name"])
        _, module, name = weight.holders[0]
        parameter = nn.Parameter(torch.as_tensor(value), requires_grad=False)
        # Nothing fills it with random numbers.
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]
        module._parameters[name] = parameter
        self.quantizer.plan.take(weight)
        kwargs["missing_keys"].discard(kwargs["full_layer_name"])
        return {}
