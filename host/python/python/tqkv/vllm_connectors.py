"""KV connectors of vLLM with attention on codes: which of them carry codes, and what becomes of exact tokens where they load blocks.

Exact tokens are known by their place in blocks (`vllm_exact`), and the tokens of a step overwrite what an earlier owner of a block left there. What a
connector loads, or vLLM copies from another block, passes by. Its place would still show the exact tokens of the earlier owner, which may be another
user's. So the scheduler says in each step which blocks are filled that way, and the worker forgets their exact tokens before it plans the step. They
are attended as codes.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Iterable, TypeVar

import torch
from vllm.v1.kv_cache_interface import AttentionSpec

from ._native import TqkvError
from .vllm_exact import FREE, UNIT, Units

CONNECTORS = (
    "ExampleConnector",
    "OffloadingConnector",
    "NixlConnector",
    "NixlPullConnector",
    "DecodeBenchConnector",
    "MultiConnector",
)
"""KV connectors that copy blocks as they lie, and so carry codes. Others take the bytes of a block for heads of a type, or no test has run them."""

LOADED = "tqkv_loaded"
"""Attribute of what the scheduler sends to workers: numbers of the blocks that begin to be loaded, by group of layers."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def refused_connector(config: Any) -> str | None:
    """What cannot carry codes among the KV connectors of an engine."""
    transfer = None if config is None else config.kv_transfer_config
    if transfer is None or transfer.kv_connector is None:
        return None
    return _refused(transfer.kv_connector, transfer.kv_connector_module_path, transfer.kv_connector_extra_config)


def _refused(name: str, module: str | None, extra: dict[str, Any] | None) -> str | None:
    extra = extra or {}
    if name not in CONNECTORS or module:
        return f"the KV connector {name}" + (f" of {module}" if module else "")
    if extra.get("canonical_layout"):
        # It divides blocks by heads.
        return f"the KV connector {name} with canonical_layout"
    parts = extra.get("connectors", []) if name == "MultiConnector" else []
    names = "kv_connector", "kv_connector_module_path", "kv_connector_extra_config"
    of_parts = (_refused(*(part.get(name) for name in names)) for part in parts)
    return next(filter(None, of_parts), None)


def watch_scheduler() -> None:
    """Lets connectors on the side of the scheduler say which blocks they load. vLLM makes them in one place."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    def create(original: Callable[..., Any], config: Any, role: Any, kv_cache_config: Any) -> Any:
        connector = original(config, role, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            _tell(connector, [group.kv_cache_spec.block_size for group in kv_cache_config.kv_cache_groups])
        return connector

    _once(KVConnectorFactory, "create_connector", create)


def _around(original: _Function, instead: Callable[..., Any]) -> _Function:
    """A function that passes `original` on to `instead`."""

    @functools.wraps(original)
    def calls(*given: Any, **named: Any) -> Any:
        return instead(original, *given, **named)

    return calls  # type: ignore[return-value]


_changed: set[tuple[type, str]] = set()


def _once(of: type, name: str, instead: Callable[..., Any]) -> None:
    """Puts `instead` around a function of a class of vLLM."""
    if (of, name) not in _changed:
        _changed.add((of, name))
        setattr(of, name, _around(getattr(of, name), instead))


def _tell(connector: Any, block_sizes: list[int]) -> None:
    """Writes down the blocks that a connector loads, and adds them to the step that begins to load them."""
    found: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    loaded: list[set[int]] = [set() for _ in block_sizes]

    def match(original: Callable[..., Any], request: Any, num_computed_tokens: int) -> Any:
        # Groups of layers may have found unlike numbers of tokens, and only the most is given.
        found[request] = num_computed_tokens if len(block_sizes) == 1 else 0
        return original(request, num_computed_tokens)

    def allocated(original: Callable[..., Any], request: Any, blocks: Any, num_external_tokens: int) -> Any:
        # What the cache of this engine has comes first, and stays as it is.
        own = found.pop(request, 0)
        if num_external_tokens > 0:
            for of_group, of_request, size in zip(loaded, blocks.blocks, block_sizes):
                of_group.update(block.block_id for block in of_request[own // size :] if not block.is_null)
        return original(request, blocks, num_external_tokens)

    def build(original: Callable[..., Any], scheduler_output: Any) -> Any:
        setattr(scheduler_output, LOADED, [sorted(of_group) for of_group in loaded])
        for of_group in loaded:
            of_group.clear()
        return original(scheduler_output)

    connector.get_num_new_matched_tokens = _around(connector.get_num_new_matched_tokens, match)
    connector.update_state_after_alloc = _around(connector.update_state_after_alloc, allocated)
    connector.build_connector_meta = _around(connector.build_connector_meta, build)


_builders: weakref.WeakSet[Any] = weakref.WeakSet()
"""What plans steps in this process and keeps exact tokens."""


def watch_worker(builder: Any) -> None:
    """Lets workers of this process forget exact tokens of `builder`, which has `units` and `layer_names`, before they plan a step."""
    from vllm.v1.worker.gpu_worker import Worker

    def execute(original: Callable[..., Any], worker: Any, scheduler_output: Any) -> Any:
        forget_filled(worker.model_runner.kv_cache_config.kv_cache_groups, scheduler_output)
        return original(worker, scheduler_output)

    _builders.add(builder)
    _once(Worker, "execute_model", execute)


def forget_filled(groups: list[Any], scheduler_output: Any) -> None:
    """Forgets the exact tokens of blocks that a step fills with codes from elsewhere."""
    loaded = getattr(scheduler_output, LOADED, None)
    if loaded is None and scheduler_output.kv_connector_metadata is not None:
        raise TqkvError("a KV connector that tqkv does not see is not valid: expected its variable and its plug-in in vLLM's scheduler too")
    copied = [target for _, target in scheduler_output.kv_cache_block_copies or []]
    for group, of_group in zip(groups, loaded or [[]] * len(groups)):
        blocks = [*of_group, *copied]
        if blocks and isinstance(group.kv_cache_spec, AttentionSpec):
            for builder in _builders:
                if not set(builder.layer_names).isdisjoint(group.layer_names):
                    forget(builder.units, blocks, group.kv_cache_spec.block_size // UNIT)


def forget(units: Units, blocks: Iterable[int], a_block: int) -> None:
    """Frees the rows of all units in blocks of `a_block` units."""
    gone = torch.isin(units.owner // a_block, torch.tensor(list(blocks), dtype=torch.int64, device=units.owner.device))
    units.owner.masked_fill_(gone, FREE)
    units.used.masked_fill_(gone, 0)
