"""What engines and libraries may add from version to version. What says something and is not known is refused by name: who ignores it may
serve something else than was asked for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Collection, Mapping

import torch

from ._native import TqkvError


def refuse_arguments(where: str, given: Mapping[str, Any], known: Collection[str], expected: str) -> None:
    """Refuses arguments that are not known, unless they say nothing: None, False, or empty."""
    for name, value in given.items():
        if name not in known and not says_nothing(value):
            raise TqkvError(f"argument {name} of {where} is not valid, because tqkv does not know it: expected {expected}")


def says_nothing(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 0
    return value is None or value is False or (hasattr(value, "__len__") and len(value) == 0)


def refuse_fields(host: str, config: Any, known: Collection[str]) -> None:
    """Refuses fields of a dataclass that are not known, unless they have their default."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in known and value != field.default:
            raise TqkvError(
                f"{field.name} {value!r} of {host} is not valid, because tqkv does not know it: expected a version or a configuration without it"
            )
