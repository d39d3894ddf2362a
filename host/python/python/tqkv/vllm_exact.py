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

from . import paged
from ._native import TqkvError

UNIT_BITS = 4
UNIT = 1 << UNIT_BITS
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


NONE, FREE = -2, -3
"""No unit, and a row without one. Neither is the place of a slot, and they differ from each other."""


def once(units: Tensor) -> Tensor:
    """Each unit where it comes first, and `NONE` where it comes again, since requests with the same beginning want the same units."""
    ordered, order = units.sort(stable=True)
    again = torch.zeros_like(units, dtype=torch.bool)
    again[1:] = ordered[1:] == ordered[:-1]
    return units.masked_fill(again.scatter(0, order, again), NONE)


class Units:
    """Which unit is in which row. Everything is on the device, and nothing is read back from there. A step is about 75 small operations for
    all layers, so ranges and constants are made once."""

    def __init__(
        self, window: Window, units: int, requests: int, tokens: int, block: int, device: torch.device, windows: Iterable[int | None] = (None,)
    ) -> None:
        # One more row takes what is given to none.
        self.owner = torch.full((units + 1,), FREE, dtype=torch.int64, device=device)
        """The unit in each row."""
        self.used = torch.zeros(units + 1, dtype=torch.int64, device=device)
        """The step in which each row was used last, 0 for a row without a unit."""
        self.step, self.count, self.block, self.window = 0, units, block, window
        self.zero, self.spare = units * UNIT, units * UNIT + 1
        self.inside = torch.arange(UNIT, device=device)
        # The newest ones are known by how far they are before the last one.
        first, newest = range(window.first), range(window.newest)
        self.is_newest = torch.tensor([False for _ in first] + [True for _ in newest], device=device)
        self.apart = torch.tensor([UNIT * i for i in first] + [UNIT * (i + 1 - window.newest) for i in newest], device=device)
        self.kept = torch.full((tokens,), self.spare, dtype=torch.int64, device=device)
        """The place where each token of the step goes."""
        self.seen = {
            of: Seen(
                torch.full((requests, window.columns), self.zero, dtype=torch.int64, device=device),
                torch.zeros(requests, dtype=torch.int32, device=device),
                torch.zeros(requests, dtype=torch.int32, device=device),
            )
            for of in windows
        }
        """What a query token sees that sees the newest so many tokens, or all."""

    def begin(self, slots: Tensor, table: Tensor, lengths: Tensor, decodes: int) -> None:
        """A step: gives rows to units that begin in it and that a request will want, and finds those of all requests. `slots` has the
        place of each new token, `table` and `lengths` are those of all requests, of which the first `decodes` have one new token."""
        self.step += 1
        lengths = lengths.long()
        of_slots, inside = slots >> UNIT_BITS, slots % UNIT
        units, tokens = self.wanted(table, lengths)
        rows, found = self.find(units)
        self.used.scatter_reduce_(0, rows.flatten(), (found * self.step).flatten(), "amax")
        # A row has all tokens of its unit, since it is given when the first one comes.
        begins = torch.where(inside == 0, of_slots, -1)
        begin = (units[..., None] == begins).any(-1) & ~found
        self.give(once(torch.where(begin, units, NONE).flatten()))
        rows, found = self.find(of_slots)
        self.kept.fill_(self.spare)
        self.kept[: len(slots)] = torch.where(found, rows * UNIT + inside, self.spare)
        for window, seen in self.seen.items() if decodes else ():
            self.decode(units[:decodes], tokens[:decodes], lengths[:decodes], window, seen)

    def wanted(self, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The units that requests of these lengths want, `[requests, units]`, and the first token of each. A unit that would be wanted twice
        is one of the first."""
        # -16 for a request without tokens.
        newest = ((lengths - 1) & -UNIT)[:, None]
        tokens = torch.where(self.is_newest, newest, 0) + self.apart
        wants = torch.where(self.is_newest, tokens >= self.window.first * UNIT, tokens <= newest)
        at = tokens.clamp(0, table.shape[1] * self.block - 1)
        a_block = self.block // UNIT
        units = table.gather(1, at // self.block) * a_block + (at >> UNIT_BITS) % a_block
        return torch.where(wants, units, NONE), tokens

    def find(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """The row of each unit, and whether it has one."""
        found, rows = (units[..., None] == self.owner[:-1]).max(-1)
        return rows, found

    def give(self, units: Tensor) -> None:
        """Gives a row to each of these units, which differ. Rows that this step uses are not taken."""
        wants = units != NONE
        order = wants.cumsum(0) - 1
        rows = self.used[:-1].argsort(stable=True)[order.clamp(0, self.count - 1)]
        wants &= (order < self.count) & (self.used[rows] < self.step)
        rows = torch.where(wants, rows, self.count)
        self.owner.scatter_(0, rows, units)
        self.used.index_fill_(0, rows, self.step)

    def decode(self, units: Tensor, tokens: Tensor, lengths: Tensor, window: int | None, seen: Seen) -> None:
        """What requests of one new token see exactly, and from where to where they see codes."""
        count = len(units)
        rows, found = self.find(units)
        first, newest = found.split([self.window.first, self.window.newest], 1)
        # Codes are one run of tokens, so exact tokens before and after them have no gap.
        first = first.cumprod(1).bool()
        newest = newest.flip(1).cumprod(1).flip(1).bool()
        starts, behind = first.sum(1) * UNIT, newest.sum(1) * UNIT
        ends = torch.where(behind > 0, ((lengths - 1) & -UNIT) + UNIT - behind, lengths)
        of_token = tokens[..., None] + self.inside
        held = torch.cat([first, newest], 1)[..., None] & (of_token < lengths[:, None, None])
        if window is not None:
            oldest = lengths - window
            starts = starts.maximum(oldest)
            held &= of_token >= oldest[:, None, None]
        seen.starts[:count] = starts
        seen.ends[:count] = ends
        places = rows[..., None] * UNIT + self.inside
        seen.places[:count] = torch.where(held, places, self.zero).flatten(1)

    def earlier(self, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the exact ones among the first tokens of requests, and the numbers of these tokens, `[requests, columns]`. What has
        no place has the number -1."""
        units, tokens = self.wanted(table, lengths)
        rows, found = self.find(units)
        of_token = tokens[..., None] + self.inside
        held = found[..., None] & (of_token < lengths[:, None, None])
        places = torch.where(held, rows[..., None] * UNIT + self.inside, self.zero)
        return places.flatten(1), torch.where(held, of_token, -1).flatten(1)
