"""How much memory the cache of a model takes, before there is one."""

from __future__ import annotations

import json
import os
from typing import Any

from . import _native
from ._arrays import count, words


class Plan:
    """The bytes of a cache of `model`, as `tqkv plan` counts them: an upper bound of what `TqkvCache` and `KvCache` hold.

    `model` is a path (a GGUF file, a folder with config.json, or a config.json), a config of Transformers, or a dict with the keys of a
    config.json. `kv` is a policy in words, and "f16" the cache without compression. Only layers that keep keys and values are counted, so
    the states of recurrent layers, which do not grow, come on top.

    >>> import tqkv
    >>> config = dict(model_type="llama", num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8)
    >>> plan = tqkv.Plan(config | dict(max_position_embeddings=131072), "t4,t2")
    >>> plan.bytes_per_token, plan.bytes(32768), plan.longest(2 << 30)
    (25600, 860465152, 82628)
    """

    def __init__(self, model: Any, kv: str = "s4") -> None:
        path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
        if path is None:
            config = _json(model)
        elif path.endswith(".json"):
            with open(path, encoding="utf-8") as file:
                config = file.read()
        else:
            config = None
        self._plan = _native.Plan(config, path, words("kv", kv))

    @property
    def context(self) -> int | None:
        """Longest sequence of the model, if its config says so."""
        return self._plan.context

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token adds in all layers while no window is full. Exact tokens take more and means a little."""
        return self._plan.bytes_per_token

    def bytes(self, tokens: int) -> int:
        """Bytes of all layers after so many tokens of one sequence."""
        return self._plan.bytes(count("tokens", tokens))

    def longest(self, memory: int) -> int | None:
        """Tokens of one sequence whose cache fits `memory` bytes, at most the context of the model. None if any number does, because all
        layers have windows and no context is known."""
        return self._plan.longest(count("memory", memory))


def _json(config: Any) -> str:
    """The text of a config.json."""
    if hasattr(config, "to_json_string"):
        return config.to_json_string(use_diff=False)
    if isinstance(config, dict):
        try:
            return json.dumps(config)
        except (TypeError, ValueError) as error:
            raise _native.TqkvError(f"a dict that is no config.json is not valid: {error}") from None
    raise _native.TqkvError(f"a model of type {type(config).__name__} is not valid: expected a path, a config of Transformers or a dict")
