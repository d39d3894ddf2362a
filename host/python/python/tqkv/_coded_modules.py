"""Modules of PyTorch that hold codes in place of a weight."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ._matrix import Matrix, codec_of_coding
from ._native import TqkvError

METADATA = frozenset(
    ("__get__", "dim", "size", "numel", "stride", "is_contiguous", "is_floating_point", "is_complex", "element_size", "get_device", "__len__")
)
"""What asks for the kind of a tensor and not for its values."""


class Decoded(torch.Tensor):
    """The attribute `weight` of a module with codes: type and shape of the weight, which is decoded when something computes with it."""

    weight: Any
    """Makes the weight."""
    _is_hf_initialized = True
    """Transformers fills it with no random numbers."""

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, weight: Any) -> Decoded:
        stand_in = torch.empty(1, dtype=dtype).expand(shape).as_subclass(cls)
        stand_in.weight = weight
        return stand_in

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if name in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                found = func(*args, **(kwargs or {}))
            if not isinstance(found, torch.Tensor):
                return found
        if name == "__set__" or name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            raise TqkvError(f"{name} on a coded weight is not valid, because codes do not change: expected a change before encode")
        args, kwargs = tree_map(_whole, (args, kwargs or {}))
        return func(*args, **kwargs)


def _whole(x: Any) -> Any:
    return x.weight() if isinstance(x, Decoded) else x


# The classes below take the place of a class of `nn.Module` that has the same attributes, so a type checker sees that class.
if TYPE_CHECKING:
    _Base = nn.Module
else:
    _Base = object


class Swapped(_Base):
    """A module whose class has changed, so that references to it stay. Copies and pickles are made from the class before, because the
    present one may have no name that a file could have."""

    was: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _bare, (self.was,), self.__dict__


class Coded(Swapped):
    """What modules with codes have in common: their memory and their state."""

    matrices: tuple[Matrix, ...]
    """One, or one per expert."""
    like: Tensor
    """No values, in the type that the weight had."""

    def _hold(self, matrices: tuple[Matrix, ...], dtype: torch.dtype) -> None:
        self.matrices = matrices
        # A buffer follows `model.to(dtype)`.
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    def held_bytes(self) -> int:
        """Bytes of the codes. Modules with tied weights hold them together."""
        return sum(matrix.native.held_bytes for matrix in self.matrices)

    def _blocks(self) -> Tensor:
        return self.matrices[0].blocks()

    def _load_blocks(self, blocks: Tensor, codec: Any) -> None:
        self.matrices[0].load(blocks, codec)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "blocks"] = self._blocks()
        destination[prefix + "coding"] = self.matrices[0].coding()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        _, _, missing, unexpected, errors = args
        names = [prefix + "blocks", prefix + "coding"]
        unexpected[:] = [name for name in unexpected if name not in names]
        absent = [name for name in names if name not in state_dict]
        missing.extend(absent)
        if not absent:
            try:
                self._load_blocks(state_dict[names[0]], codec_of_coding(state_dict[names[1]]))
            except TqkvError as error:
                errors.append(f"{names[0]}: {error}")

    def extra_repr(self) -> str:
        return ", ".join(part for part in (super().extra_repr(), repr(self.matrices[0])) if part)


class CodedRows(Coded):
    """Modules whose weight is `[outputs, inputs]`."""

    @property
    def weight(self) -> Tensor:
        matrix, dtype = self.matrices[0], self.like.dtype
        return Decoded.of((matrix.outputs, matrix.inputs), dtype, lambda: matrix.decoded(dtype))


class CodedLinear(CodedRows, nn.Linear):  # type: ignore[override]
    """`nn.Linear` that multiplies on codes."""

    def forward(self, input: Tensor) -> Tensor:
        y = self.matrices[0].multiply(input)
        return y if self.bias is None else y.add_(self.bias)


class CodedEmbedding(CodedRows, nn.Embedding):  # type: ignore[override]
    """`nn.Embedding` that decodes the rows that it is asked for."""

    def forward(self, input: Tensor) -> Tensor:
        return self.matrices[0].rows(input, self.like.dtype)


class CodedConv1D(Coded, nn.Module):
    """The `Conv1D` of GPT-2, a linear layer whose weight is `[inputs, outputs]`."""

    bias: Tensor

    @property
    def weight(self) -> Tensor:
        matrix, dtype = self.matrices[0], self.like.dtype
        return Decoded.of((matrix.inputs, matrix.outputs), dtype, lambda: matrix.decoded(dtype).T)

    def forward(self, x: Tensor) -> Tensor:
        return self.matrices[0].multiply(x).add_(self.bias)


class CodedStack(Coded, nn.Module):
    """The weights of all experts for one projection, in the place of a parameter `[experts, outputs, inputs]`, or with its last two
    axes exchanged."""

    _is_hf_initialized = True

    def __init__(self, matrices: tuple[Matrix, ...], dtype: torch.dtype, transposed: bool) -> None:
        super().__init__()
        self.was, self.transposed = CodedStack, transposed
        self._hold(matrices, dtype)

    def __getitem__(self, expert: Any) -> Tensor:
        """The decoded weight of an expert, as the parameter gave it."""
        weight = self.matrices[int(expert)].decoded(self.like.dtype)
        return weight.T if self.transposed else weight

    def _blocks(self) -> Tensor:
        return torch.stack([matrix.blocks() for matrix in self.matrices])

    def _load_blocks(self, blocks: Tensor, codec: Any) -> None:
        if len(blocks) != len(self.matrices):
            raise TqkvError(f"blocks of {len(blocks)} experts are not valid: expected {len(self.matrices)}")
        for matrix, of_expert in zip(self.matrices, blocks):
            matrix.load(of_expert, codec)


class CodedExperts(Swapped):
    """Experts of Transformers whose projections are `CodedStack`. Its tokens are multiplied expert by expert."""

    num_experts: int
    has_gate: bool
    has_bias: bool
    is_transposed: bool
    act_fn: Any
    _apply_gate: Any

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        tokens, per_token = top_k_index.shape
        chosen = top_k_index.reshape(-1)
        order = chosen.argsort(stable=True)
        experts, counts = chosen[order].unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
        results = hidden_states.new_zeros(chosen.numel(), hidden_states.shape[-1])
        parts = order.split(counts.tolist())  # type: ignore[no-untyped-call]
        for expert, part in zip(experts.tolist(), parts):
            # A number that no expert has stands for one on another machine.
            if 0 <= expert < self.num_experts:
                results[part] = self._expert(expert, hidden_states[part // per_token])
        weighted = results * top_k_weights.reshape(-1, 1)
        return weighted.view(tokens, per_token, -1).sum(dim=1).to(hidden_states.dtype)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        x = self._project("gate_up_proj" if self.has_gate else "up_proj", expert, x)
        return self._project("down_proj", expert, self._apply_gate(x) if self.has_gate else self.act_fn(x))

    def _project(self, name: str, expert: int, x: Tensor) -> Tensor:
        weight = getattr(self, name)
        if isinstance(weight, CodedStack):
            y = weight.matrices[expert].multiply(x)
        else:
            y = x @ (weight[expert] if self.is_transposed else weight[expert].T)
        return y + getattr(self, name + "_bias")[expert] if self.has_bias else y


@functools.lru_cache(maxsize=None)
def _made(name: str, bases: tuple[Any, ...]) -> Any:
    return type(name, bases, {"__module__": __name__})


def coded_class(was: type[nn.Module], kind: type[Swapped]) -> type[nn.Module]:
    """The class for modules of the class `was` once they hold codes. Methods of a subclass stay, and what they ask of the class above
    is answered by codes."""
    if was in (nn.Linear, nn.Embedding):
        return kind
    bases = (kind, was) if kind in (CodedConv1D, CodedExperts) else (was, kind)
    made: type[nn.Module] = _made("Coded" + was.__name__, bases)
    return made


def kind_of(was: type[nn.Module]) -> type[Swapped] | None:
    """The kind of codes that a module of this class can hold."""
    if was.__name__ == "Conv1D" and was.__module__ == "transformers.pytorch_utils":
        return CodedConv1D
    if issubclass(was, (nn.Linear, nn.Embedding)):
        return CodedLinear if issubclass(was, nn.Linear) else CodedEmbedding
    # Set by `use_experts_implementation` of Transformers.
    return CodedExperts if hasattr(was, "_apply_gate") else None


def _bare(was: type[nn.Module]) -> Any:
    """A module without its attributes, which `copy` and `pickle` add."""
    kind = was if was is CodedStack else coded_class(was, kind_of(was))  # type: ignore[arg-type]
    return kind.__new__(kind)
