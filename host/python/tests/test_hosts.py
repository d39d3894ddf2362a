"""What a host may add, and nobody here knows."""

from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tqkv
from tqkv._hosts import refuse_arguments, refuse_fields

NOTHING = (None, False, (), [], {}, "", torch.ones(0), np.ones(0))
SOMETHING = (True, 0, 0.5, "a", [0], {"a": 1}, torch.zeros(1), np.zeros(1), object())


def test_an_argument_that_says_something_is_refused_by_name():
    for value in NOTHING:
        refuse_arguments("it", {"new": value}, (), "another")
    for value in SOMETHING:
        refuse_arguments("it", {"known": value}, ("known",), "another")
        with pytest.raises(tqkv.TqkvError, match="^argument new of it is not valid, because tqkv does not know it: expected another$"):
            refuse_arguments("it", {"known": value, "new": value}, ("known",), "another")


@dataclass
class Config:
    size: int
    parts: int = 1


def test_a_field_that_is_not_its_default_is_refused_by_name():
    refuse_fields("it", Config(3), ("size",))
    refuse_fields("it", Config(3, 2), ("size", "parts"))
    with pytest.raises(tqkv.TqkvError, match="^parts 2 of it is not valid"):
        refuse_fields("it", Config(3, 2), ("size",))
    with pytest.raises(tqkv.TqkvError, match="^size 3 of it is not valid"):
        refuse_fields("it", Config(3), ("parts",))
