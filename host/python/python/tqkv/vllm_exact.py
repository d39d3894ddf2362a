"""Exact tokens of requests in vLLM: the first tokens and the newest ones attend as they were computed, all others as their codes.

Attention puts much of its weight on these few tokens, so their rounding is most of what codes cost. They are held in units of 16 tokens: the
first ones of a request, and its newest ones, of which the last is not full. A unit is known by its place in vLLM's blocks. So requests that
share a prefix share its units, and nothing needs to know which request a block belongs to. Each layer has rows for a number of units, and all
layers hold the same units in them. If there are too few rows, those that were not used for the longest time are given away, and what was in
them is attended as codes.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any, Iterable

import torch
from torch import Tensor

from . import _native, paged
from ._native import TqkvError

UNIT: int = _native.UNIT
"""Tokens of a unit."""

DEFAULTS = f"sinks={UNIT} hot={UNIT}"
"""What a policy says that does not name them."""


@dataclass(frozen=True)
class Window:
    """Units of a request."""

    first: int
    newest: int

    @classmethod
    def of(cls, sinks: int, hot: int) -> Window:
        """Units for at least so many tokens. The newest unit may have only one."""
        return cls(-(-sinks // UNIT), -(-hot // UNIT) + 1 if hot else 0)

    @property
    def units(self) -> int:
        return self.first + self.newest

    @property
    def columns(self) -> int:
        return self.units * UNIT


VARIABLE = "TQKV_EXACT"


SHARE = 0.02
"""Of the memory for codes, what rows take by default. Some of the requests that a small card serves then attend to codes alone."""


def requests(max_num_seqs: int, request_bytes: int, cache_bytes: int) -> int:
    """Requests for which all layers have rows of `request_bytes`."""
    said = os.environ.get(VARIABLE, "")
    if not said:
        return min(max_num_seqs, 256, int(SHARE * cache_bytes) // max(1, request_bytes))
    if not said.isascii() or not said.isdigit():
        raise TqkvError(f"{VARIABLE}={said} is not valid: expected a number of requests")
    return min(max_num_seqs, int(said))


class Rows:
    """Keys and values of a layer's units, `[num_kv_heads, places, head_dim]`: first those of the units, then a place that stays zero, and one
    for tokens that no unit holds."""

    def __init__(self, units: int, like: Tensor) -> None:
        _, heads, dim = like.shape
        shape = (heads, units * UNIT + 2, dim)
        self.rows = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(2)]
        self.places = units * UNIT
        """Places that may hold a token."""

    def at(self, places: Tensor) -> paged.ExactRows:
        """These rows, for a call that writes or reads them at places."""
        return paged.ExactRows(self.rows[0], self.rows[1], self.places, places)

    def keep(self, key: Tensor, value: Tensor, places: Tensor) -> None:
        for rows, x in zip(self.rows, (key, value)):
            rows.index_copy_(1, places[: len(x)], x.transpose(0, 1))

    def of(self, places: Tensor, side: int) -> Tensor:
        """Keys, or values, `[num_kv_heads, *places, head_dim]`."""
        rows = self.rows[side]
        return rows.index_select(1, places.flatten()).view(len(rows), *places.shape, rows.shape[2])

    @functools.cached_property
    def arrays(self) -> tuple[Any, Any]:
        """Keys and values in main memory, as arrays over the same memory."""
        keys, values = (paged._array("exact rows", rows, rows, rows.dtype) for rows in self.rows)
        return keys, values


@dataclass
class Seen:
    """Exact tokens of query tokens, as layers with one window find them, in memory that stays where it is. A graph holds its address."""

    places: Tensor
    """`[rows, columns]`, places in a layer's rows. Where no token is seen it is the place that stays zero."""
    starts: Tensor
    """`[rows]`, the first token that is attended as a code."""
    ends: Tensor
    """`[rows]`, the token after the last one of these."""


FREE = -1
"""A row without a unit."""


class Units:
    """Which unit is in which row, by the rule of the library. Everything is on the device, and nothing is read back from there. A step is two
    calls for all layers, and one for each window that layers have."""

    def __init__(
        self, window: Window, units: int, requests: int, tokens: int, block: int, device: torch.device, windows: Iterable[int | None] = (None,)
    ) -> None:
        numbers = functools.partial(torch.full, device=device)
        self.owner, self.used = numbers((units,), FREE, dtype=torch.int32), numbers((units,), 0, dtype=torch.int32)
        """The unit in each row, and the step in which each row was used last."""
        self.step, self.window, self.zero = 0, window, units * UNIT
        self.kept = numbers((tokens,), self.zero + 1, dtype=torch.int64)
        """The place where each token of the step goes."""
        self.seen = {
            of: Seen(
                numbers((requests, window.columns), self.zero, dtype=torch.int64),
                *(numbers((requests,), 0, dtype=torch.int32) for _ in range(2)),
            )
            for of in windows
        }
        """What a query token sees that sees the newest so many tokens, or all."""
        rule = window.first, window.newest, block
        self._is_main = paged._is_main(device)
        self._rule = _native.Units(*rule) if self._is_main else _native.GpuUnits(*rule, paged._device(self.owner)[0])

    def begin(self, slots: Tensor, queries: Tensor, table: Tensor, lengths: Tensor, decodes: int) -> None:
        """A step: gives rows to units that begin in it and that a request will want, and finds those of all requests. `slots` has the
        place of each new token, `queries` their number in each request, `table` and `lengths` are those of all requests, of which the first
        `decodes` have one new token."""
        self.step = (self.step + 1) % (1 << 32)
        self._call("give", self.step, table, lengths, queries)
        self._call("keep", slots, self.kept)
        for window, seen in self.seen.items() if decodes else ():
            of = seen.places, seen.starts, seen.ends
            self._call("see", table[:decodes], lengths[:decodes], window, *(x[:decodes] for x in of))

    def earlier(self, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the exact ones among the first tokens of requests, and the numbers of these tokens, `[requests, columns]`. What has
        no place has the number -1."""
        places, tokens = (self.kept.new_empty(len(table), self.window.columns) for _ in range(2))
        self._call("earlier", table, lengths, places, tokens)
        return places, tokens

    def _call(self, name: str, *given: Any) -> None:
        """Calls the rule with the lists of rows, and with tensors and numbers."""
        if self._is_main:
            rows = self.owner.numpy(), self.used.numpy()
            getattr(self._rule, name)(rows, *(x.contiguous().numpy() if isinstance(x, Tensor) else x for x in given))
            return
        rows = tuple(self._numbers(x) for x in (self.owner, self.used))
        getattr(self._rule, name)(paged._device(self.owner)[1], rows, *(self._numbers(x) if isinstance(x, Tensor) else x for x in given))

    def _numbers(self, x: Tensor) -> tuple[Any, int]:
        """A tensor as kernels take it. Those of two axes in int32 are tables of blocks."""
        return paged._table(x, self.owner) if x.dim() == 2 and x.dtype == torch.int32 else paged._numbers("numbers", x, self.owner, x.dtype)
