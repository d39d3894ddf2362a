"""A serde for LMCache: it converts chunks of L2 adapters (files, Redis, Valkey, S3, ..) to payloads of tqkv.

Importing this module registers the serde "tqkv". LMCache loads no foreign modules by itself, so start its server through this
module. The arguments are those of the command `lmcache`:

    python -m tqkv.lmcache server --l2-adapter \\
        '{"type": "resp", "host": "..", "port": 6379, "serde": {"type": "tqkv", "codec": "t4,t3", "head_dim": 128}}'
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
from lmcache.v1.distributed.serde import AsyncSerdeProcessor, Deserializer, Serializer, register_serde_factory
from lmcache.v1.memory_management import MemoryFormat, MemoryObj

from . import payload
from ._native import TqkvError

_FOUR_AXES = (MemoryFormat.UNDEFINED, MemoryFormat.KV_2LTD)
"""Layouts of chunks of all layers. LMCache names none where a chunk is on its way to an adapter."""
_THREE_AXES = {MemoryFormat.KV_2TD: 0, MemoryFormat.KV_T2D: 1}
"""The axis of keys and values in chunks of one layer. Other chunks with three axes have one plane: latents, or fused K and V."""


class TqkvSerializer(Serializer):
    """Encodes chunks to payloads of the estimated size."""

    def __init__(self, format: payload.Format, head_dim: int) -> None:
        self.format, self.head_dim = format, head_dim

    def estimate_serialized_size(self, layout_desc: MemoryLayoutDesc) -> int:
        groups = zip(layout_desc.shapes, layout_desc.dtypes, strict=True)
        return sum(self.format.size(_axes(tuple(shape), self.head_dim), dtype) for shape, dtype in groups)

    def serialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> int:
        return self.format.encode(_parts(src, self.head_dim), dst.byte_array, _name(key))


class TqkvDeserializer(Deserializer):
    """Decodes payloads to chunks. A damaged payload, or one of another shape, raises an error, and LMCache counts a miss. `remove`
    deletes it from the adapter, because LMCache would find it at each lookup and never load it."""

    def __init__(self, head_dim: int, basis: str | None = None) -> None:
        self.head_dim, self.basis = head_dim, basis
        self.remove: Callable[[list[ObjectKey]], None] = lambda keys: None

    def deserialize(self, src: MemoryObj, dst: MemoryObj, key: ObjectKey) -> None:
        parts = _parts(dst, self.head_dim)
        try:
            payload.decode(src.byte_array, parts, _name(key), self.basis)
        except TqkvError:
            self.remove([key])
            raise


class TqkvProcessor(AsyncSerdeProcessor):
    """The serde of one adapter."""

    def removes_from(self, adapter: SerdeL2AdapterWrapper) -> None:
        self._deserializer.remove = adapter.delete


def _wrap(self: SerdeL2AdapterWrapper, inner: Any, serde: Any, l1_manager: Any) -> None:
    """LMCache gives a serde no way to its adapter, so the one is told of the other where they meet."""
    _wrapped(self, inner, serde, l1_manager)
    if isinstance(serde, TqkvProcessor):
        serde.removes_from(self)


def create(options: dict[str, Any]) -> TqkvProcessor:
    """The processor for the options of a configuration.

    `head_dim` of the model is required. Optional are `codec`, `seed`, `centre`, `exact` and `effort`, or `budget` and `basis`, as in
    `tqkv.payload.Format`. `max_workers` is the number of chunks at a time."""
    options = dict(options)
    head_dim, workers = options.pop("head_dim", None), options.pop("max_workers", 2)
    for name, value in (("head_dim", head_dim), ("max_workers", workers)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TqkvError(f"{name} {value!r} of the serde tqkv is not valid: expected a positive integer")
    if unknown := options.keys() - {"codec", "seed", "centre", "exact", "effort", "budget", "basis"}:
        raise TqkvError(
            f"option {min(unknown)} of the serde tqkv is not valid: expected head_dim, codec, seed, centre, exact, effort, budget, basis and"
            " max_workers"
        )
    format = payload.Format(**options)
    return TqkvProcessor(TqkvSerializer(format, head_dim), TqkvDeserializer(head_dim, format.basis), workers)


def _name(key: ObjectKey) -> str:
    rank, group = f"{key.kv_rank:08x}", f"{key.object_group_id:x}"
    return "@".join((key.model_name, rank, group, key.chunk_hash.hex(), key.cache_salt))


def _axes(shape: tuple[int, ...], head_dim: int) -> tuple[int, ...]:
    """Layers, tokens, KV heads and head dim of a chunk's shape."""
    if len(shape) == 4 and shape[0] == 2:
        axes = shape[1:3]
    elif len(shape) == 3 and 2 in shape[:2]:
        axes = 1, shape[1] if shape[0] == 2 else shape[0]
    else:
        raise TqkvError(
            f"chunk of the shape {list(shape)} is not valid: expected [2, layers, tokens, width], [2, tokens, width] or"
            " [tokens, 2, width], no latent (MLA) or fused planes"
        )
    if shape[-1] % head_dim:
        raise TqkvError(f"chunk of the shape {list(shape)} is not valid: expected a width that is a multiple of head_dim {head_dim}")
    return *axes, shape[-1] // head_dim, head_dim


def _parts(chunk: MemoryObj, head_dim: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Views of the keys and values of a chunk, for each of its groups of layers."""
    layout = chunk.get_memory_format()
    parts = []
    for index, shape in enumerate(chunk.get_shapes()):
        axes = _axes(tuple(shape), head_dim)
        plane = _THREE_AXES.get(layout) if len(shape) == 3 else 0 if layout in _FOUR_AXES else None
        tensor = chunk.get_tensor(index)
        if plane is None or tensor is None:
            raise TqkvError(f"chunk of the layout {layout.name} and shape {list(shape)} is not valid: expected K and V in main memory")
        parts.append(tuple(side.view(axes) for side in tensor.unbind(plane)))
    return parts


if __name__ == "__main__":
    import tqkv.lmcache  # noqa: F401  registers the serde
    from lmcache.cli.main import main

    main()
else:
    register_serde_factory("tqkv", create)
    _wrapped = SerdeL2AdapterWrapper.__init__
    SerdeL2AdapterWrapper.__init__ = _wrap
