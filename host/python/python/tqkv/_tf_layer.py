"""A layer of full attention in a cache for Transformers."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from . import _tf_compiled as compiled
from ._arrays import dtype_name
from ._cache import KvCache
from ._hosts import refuse_arguments
from ._native import TqkvError
from ._tf_attention import NAME, PROMPT, NewTokens, is_on_device, left_padding, padding, tqkv_attention
from ._tf_device import DeviceRows, Elsewhere, Policy, Shared, policy

DECODES = (
    "attention decodes all keys and values for each token, which is slow: model.set_attn_implementation('tqkv') attends on codes, for"
    " models whose attention it can be"
)


USES = "the model uses keys or values outside attention, so all of them are decoded for each token, which is slow"

UNTAUGHT = (
    "keys get no map, and those named m2 or m3 are stored in t2 or t3: a map is learnt from queries, which only"
    " model.set_attn_implementation('tqkv') shows to the cache"
)

NOT_CAUSAL = "the mask is not causal attention after padding on the left"

SEVERAL = "layers that share keys and values ask for several tokens at once"

SHOWN_AGAIN = "the mask shows tokens that were padding in the prompt"

UNFINISHED = "an earlier forward pass was not finished: reset the cache"

STATE = ("is_initialized", "length", "shape", "pads", "sinks", "dtype", "device")
"""What a saved layer has besides its rows."""


class TqkvLayer(CacheLayerMixin):
    """One layer of full attention, with a `tqkv.KvCache` per row of the batch, or pages on the model's GPU."""

    is_sliding = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, config: Any, options: dict[str, Any], warns: bool = True, shared: Shared | None = None) -> None:
        super().__init__()
        self.config, self.options = config, options
        self.shared = Shared() if shared is None else shared
        # One layer warns for all.
        self.warns = warns
        self.number = compiled.number(self)
        self.reset()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, or a layer from a pickle, is another one for compiled models."""
        self.__dict__.update(state)
        self.number = compiled.number(self)

    @property
    def token_values(self) -> int:
        """Values of a token in all KV heads."""
        heads, head_dim, value_dim = self.shape
        return heads * (head_dim + value_dim)

    @property
    def keys(self) -> torch.Tensor | None:
        """Decoded keys of all tokens, for models that read them from the layer. The library expects None before the first token."""
        return self._decoded(0)[0] if self.is_initialized else None

    @keys.setter
    def keys(self, given: None) -> None:
        _refuse_to_set(given)

    @property
    def values(self) -> torch.Tensor | None:
        """Decoded values of all tokens, as `keys`."""
        return self._decoded(0)[1] if self.is_initialized else None

    @values.setter
    def values(self, given: None) -> None:
        _refuse_to_set(given)

    def bytes(self) -> int:
        """Allocated bytes of all rows."""
        return sum(row.stats()["allocated_bytes"] for row in self.rows) if self.there is None else self.there.bytes()

    def tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return sum(map(len, self.rows)) if self.there is None else self.there.tokens()

    def reset(self) -> None:
        self.is_initialized = False
        self.length = 0
        self.shape = (0, 0, 0)
        self.rows: list[KvCache] = []
        # The rows of a layer on a device, and the learned sinks that it attends with.
        self.there: DeviceRows | None = None
        self.learnt: torch.Tensor | None = None
        # Number of padding tokens at the start of each row. They are not stored.
        self.pads: list[int] = []
        # Learned sinks of the rows, by query head.
        self.sinks: list[float] | None = None
        # Calls that attended on codes, decoded all keys and values for a few tokens, and did so for a prompt or for gradients.
        self.served = {"codes": 0, "decoded": 0, "prompt": 0}
        # Why the last call of `attend` has not attended on codes, if that is not for a prompt or for gradients.
        self.why: str | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads, _, head_dim = key_states.shape
        value_dim = value_states.shape[-1]
        self.dtype, self.device = key_states.dtype, key_states.device
        self.shape = (heads, head_dim, value_dim)
        self.pads = [0] * batch
        of_device = self._policy(key_states, value_states) if is_on_device(key_states) else None
        if of_device is None:
            self.rows = self._empty(batch)
        else:
            self.there = DeviceRows(of_device, self.shared, batch, key_states)
        self.is_initialized = True

    def _policy(self, keys: torch.Tensor, values: torch.Tensor) -> Policy | None:
        """How rows on the device of keys keep their tokens; None if they cannot, with a warning for each cause."""
        try:
            return policy(self._empty(1)[0], keys, values)
        except Elsewhere as why:
            if str(why) not in self.shared.said:
                self.shared.said.add(str(why))
                warnings.warn(f"keys and values go through main memory, because {why}", stacklevel=3)
            return None

    @property
    def batch(self) -> int:
        """Rows of the batch."""
        return len(self.rows) if self.there is None else self.there.batch

    def _empty(self, batch: int) -> list[KvCache]:
        """Rows without tokens, which have the layer's learned sinks."""
        heads, head_dim, value_dim = self.shape
        sinks = {} if self.sinks is None else {"sink_logits": [self.sinks]}
        first = KvCache(1, num_kv_heads=heads, head_dim=head_dim, value_dim=value_dim, **{**self.options, **sinks})
        return [first] + [first.fork() for _ in range(1, batch)]

    def has_sinks(self, sinks: torch.Tensor | None) -> bool:
        """True if the rows attend with these learned sinks. Rows that hold no token take them."""
        if self.there is not None:
            self.learnt = sinks
            return True
        wanted = None if sinks is None else sinks.detach().float().tolist()
        if wanted != self.sinks and not any(map(len, self.rows)):
            self.sinks = wanted
            self.rows = self._empty(len(self.rows))
        return wanted == self.sinks

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, cache_kwargs: Any = None, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values to attend to: those of all tokens. For attention on codes, handles of the new ones.

        `cache_kwargs` and `kwargs` have the arguments of the model's `forward`. No layer of the library reads them, and attention gets
        them as well."""
        refuse_arguments("TqkvLayer.update", kwargs, ("kwargs",), "keys, values, cache_kwargs and kwargs")
        if torch.compiler.is_compiling() and self.config._attn_implementation == NAME:
            if getattr(self.config, "num_kv_shared_layers", None):
                raise TqkvError(f"a compiled model whose layers share keys and values is not valid with 'tqkv': {compiled.OTHERS}")
            return compiled.hand_on(self.number, key_states, value_states)
        if key_states.is_meta:
            raise TqkvError("a tensor on the device meta is not valid: expected a tensor with values")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.there is not None and self.there.device != key_states.device:
            if not is_on_device(key_states):
                raise TqkvError(f"keys on the device {key_states.device} are not valid: expected {self.there.device}, where the cache is")
            self.there.move(key_states.device)
        if len(key_states) != self.batch:
            raise TqkvError(f"a batch of {len(key_states)} is not valid: expected the {self.batch} rows of the cache")
        tokens = key_states.shape[-2]
        # A model moves, and a file comes from another machine.
        self.device = key_states.device
        self.length += tokens
        if self.config._attn_implementation == NAME:
            return NewTokens(self, key_states, value_states).handles()
        self.served["prompt" if tokens >= PROMPT else "decoded"] += 1
        if self.length > tokens and tokens < PROMPT:
            warnings.warn(DECODES, stacklevel=2)
        if self.warns and self.there is None and self.rows[0].wanted_queries(0):
            self.warns = False
            warnings.warn(UNTAUGHT, stacklevel=2)
        past = self._decoded(tokens)
        self._append(key_states, value_states)
        return _joined(past, key_states, value_states)

    def all_tokens(
        self, new: NewTokens, asked: tuple[torch.Tensor, float] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all tokens: the older ones decoded, the new ones unchanged. The new ones are appended once; `asked` are
        their queries and the factor of logits."""
        if new.decoded is None:
            new.decoded = _joined(self._decoded(new.keys.shape[-2]), new.keys, new.values)
            if not new.appended:
                self._append(new.keys, new.values, asked)
                new.appended = True
        return new.decoded

    def count_decoded(self, tokens: int, why: str | None) -> None:
        """Counts a call that decodes all keys and values. Those of a few tokens say once why they cannot attend on codes."""
        why = why or self.why
        self.served["prompt" if tokens >= PROMPT or why is None else "decoded"] += 1
        if tokens < PROMPT and why is not None and self.length > tokens and why not in self.shared.said:
            self.shared.said.add(why)
            warnings.warn(f"attention decodes all keys and values for each token, which is slow, because {why}", stacklevel=3)

    def used_outside(self, new: NewTokens) -> tuple[torch.Tensor, torch.Tensor]:
        """`all_tokens` for a model that uses keys or values before it attends: latent ones, for example."""
        if new.decoded is None:
            self.served["prompt" if new.keys.shape[-2] >= PROMPT else "decoded"] += 1
        if self.warns and self.length > new.keys.shape[-2]:
            self.warns = False
            warnings.warn(USES, stacklevel=2)
        return self.all_tokens(new)

    def _append(
        self, keys: torch.Tensor, values: torch.Tensor, asked: tuple[torch.Tensor, float] | None = None
    ) -> None:
        """Appends the newest tokens. `asked` are their queries and the factor of logits, which teach maps."""
        tokens = keys.shape[-2]
        if self.there is not None:
            self._check_length(tokens)
            self.there.append(keys, values)
            return
        for i, (row, pad) in enumerate(zip(self.rows, self.pads)):
            first = tokens - self._new(row, pad, tokens)
            k, v = (x[i, :, first:].transpose(0, 1) for x in (keys, values))
            wanted = 0 if asked is None else row.wanted_queries(0)
            if asked is None or wanted == 0:
                row.append(0, k, v)
            else:
                queries = asked[0][i, :, first : first + wanted].transpose(0, 1)
                row.append_with_queries(0, _scaled(queries, asked[1]), k, v)

    def _new(self, row: KvCache, pad: int, tokens: int) -> int:
        """Number of the newest tokens that a row does not hold yet. The others are padding."""
        new = max(self.length - pad - len(row), 0)
        if new > tokens:
            raise TqkvError(UNFINISHED)
        return new

    def _on_device(self, state: dict[str, Any]) -> DeviceRows:
        """The rows of a file on the device where they were."""
        heads, *dims = self.shape
        try:
            keys, values = (torch.empty(1, heads, 0, dim, dtype=self.dtype, device=self.device) for dim in dims)
        except (AssertionError, RuntimeError) as error:
            raise TqkvError(f"a cache of the device {self.device} is not valid here: expected a machine that has it: {error}") from error
        of_device = self._policy(keys, values)
        if of_device is None:
            raise TqkvError(f"a cache of the device {self.device} is not valid for these options: expected those that it was saved with")
        return DeviceRows.restored(state, of_device, self.shared, keys)

    def _check_length(self, tokens: int) -> None:
        if self.there is not None and self.there.end + tokens != self.length:
            raise TqkvError(UNFINISHED)

    def _decoded(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Decoded keys and values of all rows before the newest `tokens`, with zeros for padding."""
        if self.there is not None:
            return self.there.decoded()
        dtype, length = dtype_name(self.dtype), self.length - tokens
        keys, values = ([], [])
        for row, pad in zip(self.rows, self.pads):
            count = max(min(len(row), length - pad), 0)
            for into, held in ((keys, row.keys(0, None, 0, count, dtype)), (values, row.values(0, None, 0, count, dtype))):
                tensor = torch.from_numpy(held.view("int16") if dtype == "bfloat16" else held)
                tensor = tensor.view(self.dtype).to(self.device)
                into.append(torch.nn.functional.pad(tensor, (0, 0, length - count, 0)))
        return torch.stack(keys), torch.stack(values)

    def attend(
        self, query: torch.Tensor, new_tokens: NewTokens, mask: torch.Tensor | None, scaling: float
    ) -> torch.Tensor | None:
        """Appends tokens and attends on codes, `[batch, tokens, num_heads, value_dim]`.

        Appends nothing and returns None where decoded keys are needed: for a prompt, for which they are faster, for gradients, and for
        a mask that is not causal attention after padding on the left. The same holds for several tokens that are there already."""
        batch, heads, tokens, _ = query.shape
        learns = torch.is_grad_enabled() and any(x.requires_grad for x in (query, new_tokens.keys, new_tokens.values))
        self.why = None
        if self.there is not None:
            return None if learns else self._attend_there(self.there, query, new_tokens, mask, scaling)
        pads = [0] * len(self.rows) if mask is None else left_padding(mask)
        known = pads if pads is not None or mask is None else padding(mask)
        if known is not None:
            self._take_padding(known, tokens)
        if tokens >= PROMPT or learns:
            return None
        if pads is None:
            self.why = NOT_CAUSAL
        elif pads != self.pads and not self._drop_padding(pads):
            self.why = SHOWN_AGAIN
        elif new_tokens.appended and tokens > 1:
            self.why = SEVERAL
        if self.why is not None:
            return None
        out = query.new_zeros(batch, tokens, heads, new_tokens.values.shape[-1])
        query = _scaled(query, scaling)
        for i, (row, pad) in enumerate(zip(self.rows, self.pads)):
            new = min(tokens, max(self.length - pad, 0)) if new_tokens.appended else self._new(row, pad, tokens)
            q, k, v = (x[i, :, tokens - new :].transpose(0, 1) for x in (query, new_tokens.keys, new_tokens.values))
            if new and new_tokens.appended:
                out[i, 0] = row.attend(0, q[0])
            elif new:
                out[i, tokens - new :] = row.attend_prefill(0, q, k, v)
        new_tokens.appended = True
        self.served["codes"] += 1
        return out

    def _take_padding(self, pads: list[int], tokens: int) -> None:
        """Takes the padding of rows that hold no token yet, as those do whose part of a prompt was padding alone. What came before the
        newest `tokens` is not there any more, so it stays padding."""
        least = self.length - tokens
        self.pads = [own if len(row) else max(pad, least) for row, own, pad in zip(self.rows, self.pads, pads)]

    def _drop_padding(self, pads: list[int]) -> bool:
        """Drops padding that rows hold, because the mask of their prompt did not tell it from tokens. What is left is encoded again.
        False if a mask shows what an earlier one called padding."""
        if any(pad < own for pad, own in zip(pads, self.pads)):
            return False
        for i, (row, pad, own) in enumerate(zip(self.rows, pads, self.pads)):
            if pad > own:
                self.rows[i] = self._empty(1)[0]
                k, v = (read(0, None, pad - own, len(row)).swapaxes(0, 1) for read in (row.keys, row.values))
                if len(k):
                    self.rows[i].append(0, k.copy(), v.copy())
        self.pads = list(pads)
        return True

    def attend_new(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        how: tuple[float, float | None, torch.Tensor | None, bool],
    ) -> torch.Tensor:
        """What a compiled model has in the place of `update` and attention."""
        scaling, softcap, sinks, causal = how
        if mask is not None:
            mask.seen = compiled.seen_by(mask)
        module = SimpleNamespace(is_causal=causal, num_key_value_groups=query.shape[1] // keys.shape[1])
        handles = self.update(keys, values)
        return tqkv_attention(module, query, *handles, mask, scaling=scaling, softcap=softcap, s_aux=sinks)[0]

    def _attend_there(
        self, there: DeviceRows, query: torch.Tensor, new_tokens: NewTokens, mask: torch.Tensor | None, scaling: float
    ) -> torch.Tensor | None:
        """`attend` on a device. A decode step does not wait for it, so the mask is compared there."""
        tokens = query.shape[2]
        if not new_tokens.appended and (tokens >= PROMPT or there.end <= there.pads.least):
            there.set_padding([0] * there.batch if mask is None else padding(mask))
        seen = getattr(mask, "seen", None)
        if seen is not None:
            is_known = seen.shape[-1] == self.length
        else:
            is_known = there.pads.most == 0 and (mask is None or hasattr(mask, "left_padding"))
        if tokens >= PROMPT:
            return None
        if not (there.follows and is_known):
            self.why = NOT_CAUSAL if there.follows else "the mask of the prompt was not causal attention after padding on the left"
            return None
        if new_tokens.appended and tokens > 1:
            self.why = SEVERAL
            return None
        self.served["codes"] += 1
        if new_tokens.appended:
            return there.attend(query, seen, scaling, self.learnt)
        self._check_length(tokens)
        there.put(new_tokens.keys, new_tokens.values)
        out = there.attend(query, seen, scaling, self.learnt)
        there.settle()
        new_tokens.appended = True
        return out

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the newest tokens. Their number is negative, as in the library."""
        if tokens_to_remove > 0:
            raise TqkvError(f"crop({tokens_to_remove}) is not valid: expected 0 or less: minus the tokens to remove")
        self.length = max(self.length + tokens_to_remove, 0)
        if self.there is not None:
            self.there.crop(self.length)
        self.pads = [min(pad, self.length) for pad in self.pads]
        for row, pad in zip(self.rows, self.pads):
            row.truncate(min(len(row), self.length - pad))

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        if self.there is not None:
            self.there.select(beam_idx.to(self.there.device))
        else:
            self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.reorder_cache(torch.arange(self.batch, device=indices.device)[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(self.batch, device=self.device if self.there else None).repeat_interleave(repeats))

    def _select(self, indices: list[int]) -> None:
        """Keeps the rows of these indices. A row that occurs more than once is forked."""
        if not self.is_initialized:
            return
        old, taken = self.rows, set()
        self.rows = []
        for index in indices:
            self.rows.append(old[index].fork() if index in taken else old[index])
            taken.add(index)
        self.pads = [self.pads[index] for index in indices]

    def offload(self) -> None:
        """Nothing to do: codes are in main memory."""

    def prefetch(self) -> None:
        """Nothing to do, as for `offload`."""

    def __deepcopy__(self, memo: Any) -> TqkvLayer:
        """A layer with forks of the rows. The config stays the model's, whose attention may change later."""
        layer = copy.copy(self)
        layer.shared = memo.setdefault(id(self.shared), Shared())
        layer.rows, layer.pads, layer.served = [row.fork() for row in self.rows], list(self.pads), dict(self.served)
        layer.there = None if self.there is None else self.there.copy(layer.shared)
        return layer

    def state(self) -> dict[str, Any]:
        """What the layer holds, for `restored`."""
        kept = {name: getattr(self, name) for name in STATE if hasattr(self, name)}
        rows = [torch.frombuffer(bytearray(row.snapshot()), dtype=torch.uint8) for row in self.rows]
        return {**kept, "rows": rows, "there": None if self.there is None else self.there.state()}

    def restored(self, state: dict[str, Any]) -> TqkvLayer:
        """A layer with these options and a state of `state`."""
        layer = copy.copy(self)
        layer.__dict__.update({name: state[name] for name in STATE if name in state})
        layer.rows, layer.there = [], None
        if state.get("there") is not None:
            layer.there = layer._on_device(state["there"])
        for snapshot in state["rows"]:
            (row,) = layer._empty(1)
            row.restore(snapshot.numpy().tobytes())
            layer.rows.append(row)
        return layer


def _scaled(query: torch.Tensor, scaling: float) -> torch.Tensor:
    """Queries for caches, which scale by 1 / sqrt(head_dim)."""
    return query.detach().float() * (scaling * query.shape[-1] ** 0.5)


def _refuse_to_set(given: Any) -> None:
    """The library's constructor sets None, which changes nothing."""
    if given is not None:
        raise TqkvError("keys or values that are set are not valid for a compressed layer: expected update")


def _joined(
    past: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if past[0].shape[-2] == 0:
        return keys, values
    return torch.cat([past[0], keys], dim=-2), torch.cat([past[1], values], dim=-2)
