"""A coded weight as modules of PyTorch share it, and products with it as operators."""

from __future__ import annotations

import itertools
import json
import weakref
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._arrays import to_numpy
from ._codec import Codec
from ._native import TqkvError

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Types of weights and activations."""

_KEYS = itertools.count(1)
_HELD: weakref.WeakValueDictionary[int, Matrix] = weakref.WeakValueDictionary()
"""The matrices by their numbers, because an operator takes numbers and tensors only."""


class Matrix:
    """Codes of a weight `[outputs, inputs]`. Modules with tied weights hold the same one."""

    __slots__ = ("__weakref__", "_blocks", "codec", "inputs", "key", "native", "outputs")

    def __init__(self, native: _native.CodedMatrix) -> None:
        self.key = next(_KEYS)
        _HELD[self.key] = self
        self._set(native)

    def _set(self, native: _native.CodedMatrix) -> None:
        self.native, self.codec = native, Codec._of(native.codec)
        self.outputs, self.inputs = native.shape
        self._blocks: weakref.ref[Tensor] | None = None

    @classmethod
    def encode(cls, codec: Codec, weight: Tensor) -> Matrix:
        return cls(_native.CodedMatrix.encode(codec._native, to_numpy(weight)))

    def blocks(self) -> Tensor:
        """The blocks, uint8 `[outputs, bytes]`. Who asks again while the tensor lives gets the same one."""
        blocks = self._blocks() if self._blocks is not None else None
        if blocks is None:
            blocks = torch.from_numpy(self.native.blocks())
            self._blocks = weakref.ref(blocks)
        return blocks

    def coding(self) -> Tensor:
        """What the blocks are, as JSON in a tensor of bytes, because a file of safetensors has nothing but tensors."""
        said = {"codec": self.codec.name, "group": self.codec.dim, "seed": self.codec.seed}
        return torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)

    def load(self, blocks: Tensor, codec: Codec) -> None:
        """Takes the codes of other blocks. All modules that hold this matrix have them then."""
        native = _native.CodedMatrix.from_blocks(codec._native, to_numpy(blocks))
        if native.shape != (self.outputs, self.inputs):
            raise TqkvError(f"a matrix of the shape {list(native.shape)} is not valid: expected [{self.outputs}, {self.inputs}]")
        self._set(native)

    def multiply(self, x: Tensor) -> Tensor:
        """Products `[.., outputs]` of `x`, `[.., inputs]`, in the type of `x`."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise TqkvError("gradients through coded weights are not valid: expected torch.no_grad() or torch.inference_mode()")
        if torch.compiler.is_compiling():
            product: Tensor = torch.ops.tqkv.coded_multiply(x, self.key, self.outputs)
            return product
        return self.multiply_now(x)

    def multiply_now(self, x: Tensor) -> Tensor:
        """`multiply` outside of a graph, where it is shorter than the operator."""
        if x.dtype not in DTYPES or x.device.type != "cpu" or x.dim() == 0 or x.shape[-1] != self.inputs:
            raise TqkvError(_refused_x(x, self.inputs))
        out = torch.empty((*x.shape[:-1], self.outputs), dtype=x.dtype)
        self.native.multiply(_array(x.detach().contiguous()), _array(out))
        return out

    def rows(self, indices: Tensor, dtype: torch.dtype) -> Tensor:
        """Decoded rows `[.., inputs]`, one for each index."""
        if torch.compiler.is_compiling():
            rows: Tensor = torch.ops.tqkv.coded_rows(indices, self.key, self.inputs, dtype)
            return rows
        return self.rows_now(indices, dtype)

    def rows_now(self, indices: Tensor, dtype: torch.dtype) -> Tensor:
        if indices.device.type != "cpu" or indices.is_floating_point():
            raise TqkvError(f"indices of {_name(indices.dtype)} on the device {indices.device} are not valid: expected integers on the CPU")
        out = torch.empty((*indices.shape, self.inputs), dtype=dtype)
        self.native.rows(indices.long().contiguous().numpy(), _array(out))
        return out

    def decoded(self, dtype: torch.dtype) -> Tensor:
        """The weight `[outputs, inputs]`."""
        return self.rows_now(torch.arange(self.outputs), dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Matrix:
        """Codes do not change, so copies share them; modules that share the matrix share the copy."""
        return Matrix(self.native)

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_blocks, (self.codec, self.native.blocks())

    def __repr__(self) -> str:
        return f"{self.codec.name}, group={self.codec.dim}"


def _of_blocks(codec: Codec, blocks: Any) -> Matrix:
    return Matrix(_native.CodedMatrix.from_blocks(codec._native, blocks))


def codec_of_coding(coding: Tensor) -> Codec:
    """The codec that `Matrix.coding` describes."""
    try:
        said = json.loads(bytes(coding.tolist()))
        return Codec(said["codec"], said["group"], said["seed"])
    except (ValueError, KeyError, TypeError) as error:
        raise TqkvError(f"a description of codes is not valid ({error}): expected what state_dict() gave") from None


def _array(x: Tensor) -> Any:
    """An array over the memory of a contiguous tensor. bfloat16 becomes its bits."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _refused_x(x: Tensor, inputs: int) -> str:
    said = f"activations {list(x.shape)} of {_name(x.dtype)} on the device {x.device} are not valid"
    return f"{said}: expected [.., {inputs}] of float32, float16 or bfloat16 on the CPU, where coded weights are"


def _matrix(key: int) -> Matrix:
    matrix = _HELD.get(key)
    if matrix is None:
        raise TqkvError("a compiled graph whose model is gone is not valid: expected the model to live as long")
    return matrix


@torch.library.custom_op("tqkv::coded_multiply", mutates_args=())
def _multiply(x: Tensor, matrix: int, outputs: int) -> Tensor:
    return _matrix(matrix).multiply_now(x)


@torch.library.custom_op("tqkv::coded_rows", mutates_args=())
def _rows(indices: Tensor, matrix: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return _matrix(matrix).rows_now(indices, dtype)


@_multiply.register_fake
def _(x: Tensor, matrix: int, outputs: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], outputs))


@_rows.register_fake
def _(indices: Tensor, matrix: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return indices.new_empty((*indices.shape, inputs), dtype=dtype)
