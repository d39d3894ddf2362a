"""Weights of a PyTorch model in codes, which are multiplied as codes on the CPU.

    model = AutoModelForCausalLM.from_pretrained("model").eval()
    print(tqkv.weights.encode(model, "t4"))  # 134,479,872 values in 89.6 MB, before 537.9 MB
    model.generate(..)

Weights need no calibration. `encode` takes any model whose layers are `nn.Linear`, `nn.Embedding`, the `Conv1D` of GPT-2 or the experts
of Transformers, and changes it in place. A generated token reads 4.25 bits per weight then instead of 16 or 32.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Sequence

import torch
from torch import nn

from ._arrays import count, words
from ._codec import Codec
from ._coded_modules import CodedConv1D, CodedEmbedding, CodedExperts, CodedLinear, CodedStack, Swapped, coded_class, kind_of
from ._matrix import DTYPES, Matrix
from ._native import SEED, TqkvError

__all__ = ["ROUTERS", "CodedConv1D", "CodedEmbedding", "CodedExperts", "CodedLinear", "CodedStack", "Report", "encode"]

ROUTERS = ("*.gate", "*.router", "*.router.*", "*.shared_expert_gate")
"""Layers that choose experts. They are small, and a wrong choice is a large error."""


@dataclass(frozen=True)
class Report:
    """What `encode` did."""

    values: int
    """Coded values."""
    bytes_before: int
    """Bytes that they took."""
    bytes: int
    """Bytes of their codes in memory."""
    skipped: dict[str, str] = field(repr=False)
    """Matrices that stay as they are, and why."""

    def __str__(self) -> str:
        said = f"{self.values:,} values in {self.bytes / 1e6:.1f} MB, before {self.bytes_before / 1e6:.1f} MB"
        return "\n".join([said, *(f"{name} stays: {why}" for name, why in self.skipped.items())])


@dataclass
class Weight:
    """A parameter, and the modules that have it: more than one if it is tied."""

    holders: list[tuple[str, nn.Module, str]]
    """Path and module, and the name of the parameter there."""
    is_head: bool = False

    @property
    def path(self) -> str:
        path, _, name = self.holders[0]
        return path if name == "weight" else f"{path}.{name}".lstrip(".")

    @property
    def value(self) -> nn.Parameter:
        _, module, name = self.holders[0]
        value: nn.Parameter = module._parameters[name]  # type: ignore[assignment]
        return value


def encode(
    model: nn.Module, codec: str = "t4", group: int = 64, *, head: str | None = "i8", skip: Sequence[str] = ROUTERS, seed: int = SEED
) -> Report:
    """Replaces weights of a model by codes, in place, and freezes what stays. Returns what was coded.

    `codec` is one of `tqkv.Codec.names()` but "f16". `group` weights of a row share a scale of 16 bits, so rows must be whole groups.
    `head` is the codec of the output head and of the input embedding, which share their codes if they are tied; None leaves both as
    they are. `skip` are patterns of `fnmatch` for paths of modules that stay.

    One matrix is coded at a time, on all threads, and its weights are freed before the next. `t4` takes about 1 s for 20 million weights
    on one thread.

    For a product activations are rounded to 8 bits, group by group, which adds about 0.6 % to the error of a layer's result. They are
    float32, float16 or bfloat16 on the CPU, and have no gradients. `state_dict()` has the codes, and `load_state_dict` takes them into a model that was
    encoded with the same layers; `save_pretrained` is refused.

    Raises `tqkv.TqkvError`, before anything has changed, for options that are not valid and for a model that is not in main memory. A
    layer that cannot be coded stays, and `Report.skipped` says why.
    """
    if not isinstance(model, nn.Module):
        raise TqkvError(f"model of the type {type(model).__name__} is not valid: expected a torch.nn.Module")
    plan = Plan(codec, group, head, skip, seed)
    plan.run(model)
    return plan.report()


class Plan:
    """How weights are coded, and what was."""

    def __init__(self, codec: str, group: int, head: str | None, skip: Sequence[str], seed: int) -> None:
        if isinstance(skip, str) or not all(isinstance(pattern, str) for pattern in skip):
            raise TqkvError(f"skip {skip!r} is not valid: expected patterns for paths of modules, such as {ROUTERS[:1]!r}")
        self.codec, self.head = _codec(codec, group, seed), None if head is None else _codec(head, group, seed)
        self.skip = tuple(skip)
        self.values, self.before, self.held = 0, 0, 0
        self.skipped: dict[str, str] = {}

    def run(self, model: nn.Module) -> None:
        """Codes what is not coded yet."""
        weights = weights_of(model)
        for weight in weights:
            if weight.value.device.type != "cpu":
                raise TqkvError(f"{weight.path} on the device {weight.value.device} is not valid: expected a model on the CPU")
        for weight in weights:
            self.take(weight)
        model.requires_grad_(False)
        _refuse_save_pretrained(model)

    def report(self) -> Report:
        return Report(self.values, self.before, self.held, self.skipped)

    def take(self, weight: Weight) -> None:
        """Codes a weight and frees it, or says why it stays."""
        why = self.reason(weight)
        if why is None:
            values, before = weight.value.numel(), weight.value.nbytes
            try:
                self.held += _encode(weight, self._codec_of(weight))  # type: ignore[arg-type]
                self.values, self.before = self.values + values, self.before + before
            except TqkvError as error:
                why = str(error)
        if why is not None:
            self.skipped[weight.path] = why

    def _codec_of(self, weight: Weight) -> Codec | None:
        return self.head if weight.is_head else self.codec

    def reason(self, weight: Weight) -> str | None:
        """Why a weight stays, or None if it is to be coded."""
        value, kinds = weight.value, {kind_of(type(module)) for _, module, _ in weight.holders}
        for path, module, name in weight.holders:
            pattern = next((pattern for pattern in self.skip if fnmatchcase(path, pattern)), None)
            if pattern is not None:
                return f"skip has {pattern!r}"
            if not _holds_rows(module, name):
                return f"a {type(module).__name__} does not multiply it as a matrix that tqkv knows"
            if getattr(module, "max_norm", None) is not None:
                return "max_norm changes it"
        codec = self._codec_of(weight)
        if codec is None:
            return "head is None"
        if CodedEmbedding in kinds and not weight.is_head:
            return "it is not the embedding of the model's input"
        if len(kinds) > 1 and not kinds <= {CodedLinear, CodedEmbedding}:
            return "modules of several kinds share it"
        if value.dtype not in DTYPES:
            return f"weights of {str(value.dtype).replace('torch.', '')}: expected float32, float16 or bfloat16"
        inputs = value.shape[-2] if _is_transposed(weight.holders[0][1]) else value.shape[-1]
        if inputs % codec.dim or not value.numel():
            return f"rows of {inputs} values are no whole groups of {codec.dim}"
        return None


def _codec(name: str, group: int, seed: int) -> Codec:
    codec = Codec(words("codec", name), count("group", group), count("seed", seed))
    # Refuses a codec without products.
    Matrix.encode(codec, torch.zeros(1, group))
    return codec


def weights_of(model: nn.Module) -> list[Weight]:
    """All parameters that have rows, in the order of modules, without biases of experts."""
    found: dict[int, Weight] = {}
    for path, module in model.named_modules():
        for name, value in module._parameters.items():
            if value is not None and value.dim() >= 2 and not name.endswith("bias"):
                found.setdefault(id(value), Weight([])).holders.append((path, module, name))
    for weight in found.values():
        kinds = {kind_of(type(module)) for _, module, _ in weight.holders}
        weight.is_head = {CodedLinear, CodedEmbedding} <= kinds
    for name in ("get_input_embeddings", "get_output_embeddings"):
        try:
            head = getattr(model, name)()
        except (AttributeError, NotImplementedError):
            continue
        value = getattr(head, "_parameters", {}).get("weight")
        if id(value) in found:
            found[id(value)].is_head = True
    return list(found.values())


def _holds_rows(module: nn.Module, name: str) -> bool:
    """True for a parameter that the classes with codes replace."""
    kind = kind_of(type(module))
    if kind is CodedExperts:
        return name in ("gate_up_proj", "up_proj", "down_proj") and hasattr(module, "is_transposed")
    # nn.MultiheadAttention reads the weight of its part.
    return kind is not None and name == "weight" and not isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear)


def _is_transposed(module: nn.Module) -> bool:
    return kind_of(type(module)) is CodedConv1D or bool(getattr(module, "is_transposed", False))


def _encode(weight: Weight, codec: Codec) -> int:
    """Encodes a weight and frees it. Returns the bytes of the codes."""
    value = weight.value.detach()
    module = weight.holders[0][1]
    rows = value.mT if _is_transposed(module) else value
    matrices = tuple(Matrix.encode(codec, matrix) for matrix in (rows if rows.dim() == 3 else (rows,)))
    for _, module, name in weight.holders:
        kind = kind_of(type(module))
        del module._parameters[name]
        if kind is CodedExperts:
            module.add_module(name, CodedStack(matrices, value.dtype, _is_transposed(module)))
        _swap(module, kind)  # type: ignore[arg-type]
        if kind is not CodedExperts:
            module._hold(matrices, value.dtype)  # type: ignore[operator]
    return sum(matrix.native.held_bytes for matrix in matrices)


def _swap(module: nn.Module, kind: type[Swapped]) -> None:
    """Gives a module the class that has codes, once."""
    if not isinstance(module, Swapped):
        was = type(module)
        module.was = was  # type: ignore[assignment]
        module.__class__ = coded_class(was, kind)


def _refuse_save_pretrained(model: nn.Module) -> None:
    """A folder with codes would be read as one without weights."""
    if "transformers" in sys.modules:
        from ._tf_weights import TqkvQuantizer

        for module in model.modules():
            if hasattr(module, "save_pretrained") and getattr(module, "hf_quantizer", None) is None:
                module.hf_quantizer = TqkvQuantizer(pre_quantized=False)  # type: ignore[assignment]
