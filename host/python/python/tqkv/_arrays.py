"""Converts the caller's arrays and tensors to NumPy arrays for the native module, and results back to the caller's type.

PyTorch is never imported here: a caller that passes a tensor has imported it.
"""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING, Any, Sequence, TypeVar, Union

import numpy as np

from ._native import TqkvError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor, dtype

    Either = Union[NDArray[Any], Tensor]
    """Keys, values, queries or blocks: arrays or tensors."""
    Numbers = Union[Either, Sequence[int], range]
    """Numbers of slots or tokens, or positions: a list, a range, an array or a tensor."""
    Array = TypeVar("Array", NDArray[Any], Tensor)
    """The same, where results have the type of the argument."""
    DType = Union[str, type, np.dtype[Any], dtype]
    """A dtype of NumPy or PyTorch, or its name."""


def _torch() -> Any:
    return sys.modules.get("torch")


def is_tensor(x: Any) -> bool:
    """True if x is a tensor of PyTorch."""
    torch = _torch()
    return torch is not None and isinstance(x, torch.Tensor)


def count(name: str, value: Any) -> int:
    """A number of something, or an index from 0 on."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64 or isinstance(value, bool):
        raise TqkvError(f"{name} {value!r} is not valid: expected a whole number from 0 on")
    return number


def whole(name: str, value: Any) -> int:
    """A number of positions, back if it is negative."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 1 << 31
    if not -(1 << 31) <= number < 1 << 31 or isinstance(value, bool):
        raise TqkvError(f"{name} {value!r} is not valid: expected a whole number of at most 31 bits")
    return number


def counts(name: str, values: Any) -> list[int]:
    """Several of them, such as the indexes of sequences."""
    try:
        return [count(name, value) for value in values]
    except TypeError:
        raise TqkvError(f"{name} of the type {type(values).__name__} is not valid: expected whole numbers from 0 on") from None


def real(name: str, value: Any) -> float:
    """A number that may have a fraction. What it may be is checked where it is used."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TqkvError(f"{name} {value!r} is not valid: expected a number")
    return float(value)


def words(name: str, value: Any) -> str:
    """A text."""
    if isinstance(value, str):
        return value
    raise TqkvError(f"{name} {value!r} is not valid: expected a text")


def octet_array(name: str, value: Any) -> np.ndarray:
    """Bytes as an array over the same memory."""
    try:
        return np.frombuffer(value, np.uint8)
    except (TypeError, ValueError, BufferError):
        raise TqkvError(f"{name} of the type {type(value).__name__} is not valid: expected bytes, or an array of them") from None


def octets(name: str, value: Any) -> bytes:
    """Bytes, of anything that holds some."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TqkvError(f"{name} of the type {type(value).__name__} is not valid: expected bytes")


def to_numpy(x: Any) -> np.ndarray:
    """An array of x in C order. It is a copy only if x has another order or another device. bfloat16 becomes its bits, uint16."""
    if is_tensor(x):
        if x.device.type == "meta":
            raise TqkvError("a tensor on the device meta is not valid: expected a tensor with values")
        try:
            x = x.detach().cpu().contiguous()
            # bfloat16 by way of int16, because older versions have no uint16.
            is_bits = str(x.dtype) == "torch.bfloat16"
            held: np.ndarray = x.view(_torch().int16).numpy().view(np.uint16) if is_bits else x.numpy()
        except (TypeError, RuntimeError) as error:
            # NumPy has no float8, and nothing for sparse tensors.
            said = f"a tensor of {str(x.dtype).rpartition('.')[2]}, {str(x.layout).rpartition('.')[2]}, is not valid"
            raise TqkvError(f"{said}: expected a strided one of float32, float16 or bfloat16") from error
        return held
    if np.ma.is_masked(x):
        raise TqkvError("an array with masked values is not valid: expected an array whose values all count, as x.filled(0) makes")
    if not isinstance(x, np.ndarray):
        try:
            x = np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise TqkvError(f"a {type(x).__name__} that NumPy cannot read is not valid: expected an array or a tensor") from error
    if x.dtype.name == "bfloat16":
        x = x.view(np.uint16)
    return np.require(x, requirements=["C", "A"])


def numbers(name: str, values: Any) -> NDArray[np.int64]:
    """Numbers as an array in C order. What they may be is checked where they are used."""
    if is_tensor(values):
        values = to_numpy(values)
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TqkvError(f"{name} of the type {type(values).__name__} is not valid: expected a list of whole numbers from 0 on")
    return np.ascontiguousarray(array, np.int64)


def from_numpy(array: np.ndarray, like: Any, dtype: str = "") -> Any:
    """Converts an array to the type of `like`, array or tensor. A bfloat16 result for tensors is a tensor of bfloat16."""
    if not is_tensor(like):
        return array
    torch = _torch()
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(array).to(like.device)


def writable(out: Any) -> np.ndarray | None:
    """An array that shares the memory of `out`."""
    if out is None:
        return None
    if is_tensor(out):
        if out.device.type != "cpu" or not out.is_contiguous():
            raise TqkvError("out in this memory is not valid: expected a contiguous tensor in main memory")
        return to_numpy(out)
    if not isinstance(out, np.ndarray):
        raise TqkvError(f"out of the type {type(out).__name__} is not valid: expected an array or a tensor")
    return out


def dtype_name(dtype: DType) -> str:
    """The name of a dtype of NumPy or PyTorch. A name stays as it is."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    return name.rpartition(".")[2]
