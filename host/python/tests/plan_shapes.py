"""Numbers that remember the keys of a config that they came from, and tensors that remember such numbers as their shape."""

import contextlib
import math
import operator

import torch
from torch.overrides import TorchFunctionMode


class Named:
    """A number, and the expression of keys that it is."""

    def __new__(cls, value, text):
        self = super().__new__(cls, value)
        self.text = text
        return self

    def __deepcopy__(self, _):
        return self

    def __copy__(self):
        return self

    def __ceil__(self):
        return Key(math.ceil(self.plain()), f"ceil({self.text})")


class Key(Named, int):
    """A whole number by keys."""

    plain = int.__int__


class Real(Named, float):
    """Another number by keys."""

    plain = float.__float__


class AnyInt(type):
    def __instancecheck__(cls, value):
        return isinstance(value, int)


class Int(int, metaclass=AnyInt):
    """`int`, which keeps expressions."""

    def __new__(cls, value=0, *more):
        if isinstance(value, Key):
            return value
        return Key(int(value.plain()), f"int({value.text})") if isinstance(value, Real) else int(value, *more)


def text_of(value):
    return value.text if isinstance(value, Named) else str(value)


def is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def is_real(value):
    return is_number(value) or isinstance(value, float)


def plain(value):
    return value.plain() if isinstance(value, Named) else value


def with_operation(name, sign):
    def made(left, right, of):
        result = of(plain(left), plain(right))
        if sign == "//" and text_of(left) == text_of(right):
            return 1
        return (Key if isinstance(result, int) else Real)(result, f"({text_of(left)}{sign}{text_of(right)})")

    of = getattr(operator, name)
    setattr(Named, f"__{name}__", lambda self, other: made(self, other, of) if is_real(other) else NotImplemented)
    setattr(Named, f"__r{name}__", lambda self, other: made(other, self, of) if is_real(other) else NotImplemented)


for operation in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//"), ("truediv", "/")):
    with_operation(*operation)


class Shapes(TorchFunctionMode):
    """Remembers the expressions of the shape of each tensor that is made."""

    MAKERS = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", "") == "torch.nn.init":
            return None
        made = function(*args, **(kwargs or {}))
        if not isinstance(made, torch.Tensor) or getattr(made, "keys", None):
            return made
        if function in self.MAKERS:
            size = (kwargs or {}).get("size", args[0] if args and not is_number(args[0]) else args)
            made.keys = [text_of(n) for n in size]
        elif function is torch.arange:
            ends = [n for n in args if is_number(n)]
            count = ends[0] if len(ends) == 1 else ends[1] - ends[0] if len(ends) == 2 else None
            made.keys = [text_of(count)] if count is not None else None
        elif function is torch.Tensor.expand and getattr(args[0], "keys", None):
            sizes = args[1] if len(args) == 2 and not is_number(args[1]) else args[1:]
            before = ["1"] * (len(sizes) - len(args[0].keys)) + args[0].keys
            made.keys = [old if n == -1 else text_of(n) for n, old in zip(sizes, before)]
        elif function is torch.Tensor.__getitem__ and args[1] == (None, slice(None)) and getattr(args[0], "keys", None):
            made.keys = ["1", *args[0].keys]
        else:
            same = [one for one in args if isinstance(one, torch.Tensor) and one.shape == made.shape and getattr(one, "keys", None)]
            made.keys = same[0].keys if same else None
        return made


@contextlib.contextmanager
def remembered():
    """Parameters keep the expressions of the tensor that they are made of."""
    new = torch.nn.Parameter.__new__

    def with_keys(cls, data=None, *more, **named):
        self = new(cls, data, *more, **named)
        self.keys = getattr(data, "keys", None)
        return self

    torch.nn.Parameter.__new__ = with_keys
    try:
        with Shapes(), torch.device("meta"):
            yield
    finally:
        torch.nn.Parameter.__new__ = new
