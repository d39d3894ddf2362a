"""A compressed KV cache for models of Hugging Face Transformers (5.16 and newer).

    from tqkv.transformers import TqkvCache
    model.set_attn_implementation("tqkv")
    model.generate(**inputs, past_key_values=TqkvCache(model.config, kv="t4,t3"))

Importing this module registers `attn_implementation="tqkv"`. With it generated tokens attend on codes, and older tokens are decoded only
for a prompt in several pieces, for gradients and for masks with holes. Any other attention implementation works as well: keys and values
are then decoded for each forward pass, as in the library's own quantised caches.
"""

from __future__ import annotations

import copy
import io
import os
import warnings
import zlib
from typing import Any, Sequence

import torch
import transformers
from packaging.version import Version

OLDEST = "5.16"
"""The oldest version of Transformers that the tests run with."""

if Version(transformers.__version__) < Version(OLDEST):
    raise ImportError(f"transformers {transformers.__version__} is not valid: expected {OLDEST} or newer")

from transformers.cache_utils import DynamicCache, DynamicLayer

from ._cache import KvCache
from ._native import TqkvError
from ._store import write_whole
from ._tf_device import Shared
from ._tf_layer import TqkvLayer
from ._tf_weights import TqkvWeights

__all__ = ["TqkvCache", "TqkvLayer", "TqkvWeights"]

MAGIC = b"\x89TQT\r\n\x1a\n"


class TqkvCache(DynamicCache):
    """A cache for the argument `past_key_values`. Layers of full attention are compressed, others are the library's own.

    `kv` is the text of `tqkv.KvCache`: "t4,t3", or "t4,t2 hot=32 last:i8". `layers` names the codecs of each layer, in its place. The
    further options are those of `tqkv.KvCache`. Each row of a batch is a cache of its own, and rows that began alike share their memory.

    `fork` (and `copy`, `deepcopy`) makes a cache with the same tokens that shares their pages: a prefix for many continuations. `save`
    and `load` keep a cache in a file. `pickle` works as well.
    """

    def __init__(
        self, config: Any, kv: str = "t4,t3", *, layers: Sequence[str] | None = None, **options: Any
    ) -> None:
        if not isinstance(config, transformers.PretrainedConfig):
            raise TqkvError(f"config of the type {type(config).__name__} is not valid: expected a model's config (model.config)")
        super().__init__(config=config)
        named = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
        self._made = {"kv": kv, "layers": None if layers is None else list(layers), **named}
        decoder = config.get_text_config(decoder=True)
        options = {"soft_cap": getattr(decoder, "attn_logit_softcapping", None), **options}
        shared = Shared()
        # Each layer is a cache of its own, so rules for layers are followed here.
        codecs = KvCache(len(self.layers), 1, 1, 64, kv).layer_codecs if layers is None else list(layers)
        if len(codecs) != len(self.layers):
            raise TqkvError(f"codecs of {len(codecs)} layers are not valid: expected {len(self.layers)}, as many as the model has")
        for i, (layer, of) in enumerate(zip(self.layers, decoder.per_layer_config)):
            # Subclasses are left out: they keep more than keys and values, or fewer tokens.
            if type(layer) is DynamicLayer:
                own = {"kv": kv, "layers": [codecs[i]], "num_heads": of.num_attention_heads, **options}
                # Before a model runs: what no cache can be is refused here.
                KvCache(1, num_kv_heads=own["num_heads"], head_dim=64, **own)
                is_first = not any(isinstance(other, TqkvLayer) for other in self.layers)
                self.layers[i] = TqkvLayer(decoder, own, warns=is_first, shared=shared)
        if not any(isinstance(layer, TqkvLayer) for layer in self.layers):
            warnings.warn(f"nothing is compressed: no layer of this {decoder.model_type} keeps the keys and values of all tokens", stacklevel=2)

    def stats(self) -> dict[str, float]:
        """Tokens, allocated bytes of keys and values, their bytes at 16 bits per value and in the model's own dtype (`plain_bytes`), the
        `ratio`, and the number of layers that are compressed, and that are not (sliding and recurrent ones). `refused_layers` are those
        on a GPU to which a vector came that is not finite, and which took zeros for it.

        `calls_on_codes`, `calls_decoded` and `calls_of_prompts` count calls of attention over all layers: those on codes, those that decoded
        all keys and values for a few tokens, and those of prompts, gradients among them. If many are decoded, a warning has said why.

        `ratio` is `f16_bytes / bytes`, over all layers, whatever the dtype of the model: 1 where nothing is compressed yet."""
        held, values, plain, compressed, refused = 0, 0, 0, 0, 0
        served = {"codes": 0, "decoded": 0, "prompt": 0}
        for layer in self.layers:
            if isinstance(layer, TqkvLayer):
                compressed += 1
                served = {name: count + layer.served[name] for name, count in served.items()}
                refused += layer.there is not None and bool(layer.there.refused)
                held += layer.bytes()
                count = layer.token_values * layer.tokens()
                values += count
                plain += count * layer.dtype.itemsize if layer.is_initialized else 0
            else:
                tensors = _tensors(layer)
                held += sum(x.nbytes for x in tensors)
                values += sum(x.numel() for x in tensors)
                plain += sum(x.nbytes for x in tensors)
        sizes = {"bytes": held, "f16_bytes": 2 * values, "plain_bytes": plain, "ratio": 2 * values / held if values else 1.0}
        counts = {"compressed_layers": compressed, "other_layers": len(self.layers) - compressed, "refused_layers": refused}
        calls = {"calls_on_codes": served["codes"], "calls_decoded": served["decoded"], "calls_of_prompts": served["prompt"]}
        return {"tokens": self.get_seq_length(), **sizes, **counts, **calls}

    def fork(self) -> TqkvCache:
        """Another cache with the same tokens. Compressed layers share pages until one of the two writes."""
        return copy.deepcopy(self)

    __copy__ = fork

    def __repr__(self) -> str:
        said = self.stats()
        options = {name: value for name, value in self._made.items() if value is not None}
        of = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"<{type(self).__name__} {of}: {said['tokens']} tokens in {said['bytes']} bytes, ratio {said['ratio']:.2f}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the options and the tokens of all layers to a file, which appears complete or not at all. It reveals the text, as a snapshot
        does."""
        file = io.BytesIO()
        layers = [(type(layer).__name__, _state(layer)) for layer in self.layers]
        torch.save({"made": self._made, "layers": layers}, file)
        data = file.getvalue()
        write_whole(path, MAGIC + zlib.crc32(data).to_bytes(4, "little") + data)

    @classmethod
    def load(cls, path: str | os.PathLike[str], config: Any) -> TqkvCache:
        """A cache with the options and the tokens of a file, for a model of this config."""
        saved = _saved(path)
        cache = cls(config, **saved["made"])
        cache._restore(path, saved["layers"])
        return cache

    def restore_from(self, path: str | os.PathLike[str]) -> None:
        """Restores the tokens of a file. The file must be that of a cache of the same model and options. If it is refused, the cache
        stays as it is. Rows share no memory after that."""
        self._restore(path, _saved(path)["layers"])

    def _restore(self, path: str | os.PathLike[str], states: list[tuple[str, dict[str, Any]]]) -> None:
        kinds = [type(layer).__name__ for layer in self.layers]
        if [kind for kind, _ in states] != kinds:
            raise TqkvError(f"{os.fspath(path)}: layers of another model are not valid: expected {', '.join(sorted(set(kinds)))}")
        self.layers = [_restored(layer, state) for layer, (_, state) in zip(self.layers, states)]


def _tensors(layer: Any) -> list[torch.Tensor]:
    """What a layer of the library holds: keys and values, and the states of a recurrent one."""
    states = [*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values()]
    return [x for x in (getattr(layer, "keys", None), getattr(layer, "values", None), *states) if isinstance(x, torch.Tensor)]


def _saved(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` wrote."""
    with open(path, "rb") as file:
        head, crc, data = file.read(len(MAGIC)), file.read(4), file.read()
    if head != MAGIC or zlib.crc32(data).to_bytes(4, "little") != crc:
        raise TqkvError(f"{os.fspath(path)}: the file is not valid: expected one of TqkvCache.save, undamaged")
    saved: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return saved


def _state(layer: Any) -> dict[str, Any]:
    """What a layer holds, in types that a file can have. Layers of the library keep tensors and counts."""
    return layer.state() if isinstance(layer, TqkvLayer) else dict(vars(layer))


def _restored(layer: Any, state: dict[str, Any]) -> Any:
    """A layer like this one with another state."""
    if isinstance(layer, TqkvLayer):
        return layer.restored(state)
    layer = copy.copy(layer)
    layer.__dict__.update(state)
    return layer
