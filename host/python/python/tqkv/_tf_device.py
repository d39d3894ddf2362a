"""The rows of a layer on the model's GPU: pages of codes, and exact tokens in tensors of the model's dtype.

All rows of a batch end at the same token, so tokens have one number in all rows, that of the library, padding included. From `start` on they
are exact. Older ones are codes, apart from padding and from the first tokens of each row, the sinks. So what a decode step does is the same
in all layers and known on the host, but for the padding of each row, which only tensors have. Nothing waits for the device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor

from . import _native, paged
from ._cache import KvCache
from ._native import TqkvError
from ._tf_attention import PROMPT

GROUP = 64
"""Tokens that leave the window together, and tokens of a block."""

LEARNT, MEAN, FIRST = 0, 1, 2
"""Columns of the exact tensors: a learned sink, the means, and the first token. Key and value of a learned sink are zeros. The coded tokens
are stored less the means, so the logit of the mean of keys is added to theirs, and their weight goes to the mean of values."""

MOST = 16384
"""Tokens that are encoded at once. It bounds the memory of the work."""

LOWEST = -1e30
"""A bias below every logit. It is finite, so that rows of padding have no NaN."""


class Elsewhere(Exception):
    """Why the tokens of a layer are not on the model's device."""


@dataclass(frozen=True)
class Policy:
    layout: paged.Layout
    sinks: int
    hot: int
    shares: tuple[float | None, float | None]
    """Shares of the energy of keys and of values from which a mean is subtracted."""


def policy(cache: KvCache, keys: Tensor, values: Tensor) -> Policy:
    """What a cache of one layer says of its tokens, for keys and values on a device, or `Elsewhere`."""
    if not hasattr(_native, "Paged"):
        raise Elsewhere("this package was built without the feature cuda")
    spec = _native.Spec([cache.spec])
    if lacking := spec.refused("device"):
        raise Elsewhere(f"only it has {' '.join(lacking)}")
    [codecs] = spec.codecs()
    dims = (keys.shape[-1], values.shape[-1])
    if dims[0] != dims[1]:
        raise Elsewhere(f"keys of {dims[0]} and values of {dims[1]} coordinates have no kernels on a GPU")
    if keys.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise Elsewhere(f"{str(keys.dtype).replace('torch.', '')} has no kernels on a GPU")
    layout = paged.Layout(spec.num_heads, keys.shape[1], dims[0], codecs, GROUP, spec.seed, spec.scale_mode, spec.effort)
    try:
        layout.block_bytes(keys.device)
        paged.new_plan(layout, 1, keys.device)
    except (TqkvError, RuntimeError) as error:
        raise Elsewhere(str(error).split("\n")[0]) from error
    return Policy(layout, spec.sinks, spec.hot, spec.least_shares(0))


@dataclass(eq=False)
class Pads:
    """Padding tokens at the start of each row: a tensor, and bounds that the host knows."""

    each: Tensor
    least: int
    most: int
    known: list[int] | None
    """The numbers themselves, before rows were moved by indices of the device."""

    @classmethod
    def of(cls, numbers: list[int], device: torch.device) -> Pads:
        return cls(torch.tensor(numbers).to(device), min(numbers), max(numbers), numbers)

    def numbers(self) -> list[int]:
        if self.known is None:
            self.known = self.each.tolist()
        return self.known


class Shared:
    """What the layers of a cache have in common in a step: each is made once. It may be forgotten at any time."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[tuple[Any, ...], Any]] = {}
        self.said: set[str] = set()

    def get(self, name: str, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        held = self._held.get(name)
        if held is None or not all(map(_is_same, held[0], key)):
            held = self._held[name] = (key, make())
        return held[1]

    def __reduce__(self) -> Any:
        return Shared, ()

    def __deepcopy__(self, memo: Any) -> Shared:
        return Shared()


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """For a function that makes tensors which later steps write to: they must not belong to inference mode."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return run


def _is_same(a: Any, b: Any) -> bool:
    return a is b or not (isinstance(a, Tensor) or isinstance(b, Tensor)) and a == b


class DeviceRows:
    """The rows of a batch in one layer. Tensors are `[batch, num_kv_heads, tokens, head_dim]`."""

    @_kept
    def __init__(self, policy: Policy, shared: Shared, batch: int, like: Tensor) -> None:
        self.policy, self.shared = policy, shared
        self.text = paged._text(policy.layout)
        self.first = FIRST + policy.sinks
        """The column of token `start`."""
        of, most = policy.layout, policy.hot + GROUP - 1 + PROMPT - 1
        self.exact = [like.new_zeros(batch, of.num_kv_heads, self.first + most, of.head_dim) for _ in range(2)]
        self.pool = torch.zeros(batch, 0, of.block_bytes(like.device), dtype=torch.uint8, device=like.device)
        self.refused = torch.zeros(1, dtype=torch.int32, device=like.device)
        self.start = self.end = 0
        self.pads = self._pads([0] * batch)
        # False after a prompt whose mask was another one than causal attention after this padding.
        self.follows = True

    def _pads(self, numbers: list[int]) -> Pads:
        device = self.refused.device
        # Rows begin without, so that both are held.
        name = "pads" if any(numbers) else "no pads"
        return self.shared.get(name, (tuple(numbers), device), lambda: Pads.of(list(numbers), device))

    @property
    def batch(self) -> int:
        return len(self.pool)

    @property
    def device(self) -> torch.device:
        return self.refused.device

    @property
    def is_coded(self) -> bool:
        """True if a row may have codes."""
        return self.start - self.policy.sinks > self.pads.least

    def bytes(self) -> int:
        return self.pool.nbytes + sum(x.nbytes for x in self.exact)

    def tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return sum(max(self.end - pad, 0) for pad in self.pads.numbers())

    def set_padding(self, numbers: list[int] | None) -> None:
        """Takes the padding of a prompt whose mask the host has read. Only rows without tokens take another one."""
        if self.end <= self.pads.least:
            self.pads, self.follows = self._pads(numbers or [0] * self.batch), numbers is not None
        elif numbers != self.pads.numbers():
            self.follows = False

    # Lists of a step, which all layers share.

    def _lengths(self) -> Tensor:
        start, pads, sinks = self.start, self.pads, self.policy.sinks
        return self.shared.get("lengths", (pads, start, sinks), lambda: (start - sinks - pads.each).clamp(min=0).int())

    def _table(self, queries: int = 1) -> Tensor:
        """Blocks of each query token. Those of a row follow each other in the pool."""
        batch, blocks, _ = self.pool.shape

        def make() -> Tensor:
            table = torch.arange(batch * blocks, dtype=torch.int32, device=self.device).view(batch, blocks)
            return table.repeat_interleave(queries, 0)

        return self.shared.get(f"table {queries}", (batch, blocks, self.device), make)

    def _plan(self, queries: int) -> Tensor:
        """The plan of a step. Each query token sees all codes, so it is a sequence of its own."""

        def make() -> Tensor:
            plan = paged.new_plan(self.policy.layout, self.batch * queries, self.device)
            lengths = self._lengths() if queries == 1 else self._lengths().repeat_interleave(queries)
            paged.plan(self.policy.layout, lengths, plan, max_tokens=self.pool.shape[1] * GROUP)
            return plan

        key = (self.pads, self.start, self.policy.sinks, self.pool.shape[1])
        return self.shared.get(f"plan {queries} {self.text}", key, make)

    def _places(self, first: int, count: int) -> Tensor:
        """Places of tokens in the pool. Padding and sinks have none."""

        def make() -> Tensor:
            at = torch.arange(first - self.policy.sinks, first - self.policy.sinks + count, device=self.device) - self.pads.each[:, None]
            rows = torch.arange(self.batch, device=self.device)[:, None] * (self.pool.shape[1] * GROUP)
            return torch.where(at >= 0, at + rows, -1).view(-1)

        return self.shared.get("places", (self.pads, first, count, self.policy.sinks, self.pool.shape[1]), make)

    def _sink_tokens(self) -> Tensor:
        """Numbers of the sinks, `[batch, sinks]`."""
        return self.pads.each[:, None] + torch.arange(self.policy.sinks, device=self.device)

    def _bias(self, queries: int, seen: Tensor | None) -> Tensor | None:
        """What is added to the logits of the columns, `[batch, 1, queries, columns]`; None if it is 0. A row whose mask is not what
        the rows' padding says gets NaN: the host does not know, and a wrong result that looks right would be worse."""
        start, end, sinks, pads = self.start, self.end, self.policy.sinks, self.pads

        def make() -> Tensor | None:
            if seen is None and queries == 1 and pads.most + sinks <= start:
                return None
            at = torch.arange(end, device=self.device)
            of_row = pads.each[:, None]
            newest = (end - queries + torch.arange(queries, device=self.device))[:, None]
            window = (at[start:] >= of_row)[:, None] & (at[start:] <= newest)
            others = torch.ones(self.batch, queries, FIRST, dtype=torch.bool, device=self.device)
            visible = torch.cat([others, (self._sink_tokens() < start)[:, None].expand(-1, queries, -1), window], -1)
            bias = torch.zeros(visible.shape, device=self.device).masked_fill_(~visible, LOWEST)
            if seen is not None:
                wrong = (seen.bool() != (at >= of_row)).any(-1)
                bias.masked_fill_(wrong[:, None, None], torch.nan)
            return bias[:, None]

        return self.shared.get("bias", (pads, start, end, sinks, queries, seen), make)

    # Tokens that come and leave.

    @torch.compiler.disable
    def append(self, keys: Tensor, values: Tensor) -> None:
        used, count = self.end - self.start, keys.shape[2]
        if self.first + used + count <= self.exact[0].shape[2]:
            self.put(keys, values)
            self.settle()
            return
        new = [x.detach().to(self.exact[0].dtype) for x in (keys, values)]
        if used:
            new = [torch.cat([exact[:, :, self.first : self.first + used], x], 2) for exact, x in zip(self.exact, new)]
        leave = max(used + count - self.policy.hot, 0) // GROUP * GROUP
        self._encode([x[:, :, :leave] for x in new])
        for exact, x in zip(self.exact, new):
            exact[:, :, self.first : self.first + used + count - leave] = x[:, :, leave:]
        self.end += count
        self.start += leave

    def put(self, keys: Tensor, values: Tensor) -> None:
        """Appends up to 7 tokens to the window. `settle` follows once they have attended."""
        first = self.first + self.end - self.start
        self.end += keys.shape[2]
        for exact, x in zip(self.exact, (keys, values)):
            exact[:, :, first : first + x.shape[2]] = x.detach()

    def settle(self) -> None:
        """Encodes the groups that have left the window."""
        used = self.end - self.start
        leave = max(used - self.policy.hot, 0) // GROUP * GROUP
        if leave == 0:
            return
        old = [exact[:, :, self.first : self.first + used] for exact in self.exact]
        self._encode([x[:, :, :leave] for x in old])
        for x in old:
            x[:, :, : used - leave] = x[:, :, leave:].clone()
        self.start += leave

    def _encode(self, group: list[Tensor]) -> None:
        """Encodes the tokens from `start` on."""
        count = group[0].shape[2]
        if count == 0:
            return
        self._keep_sinks(group)
        self._learn(group)
        self._reserve(self.start + count)
        step = max(MOST // self.batch, 1)
        for first in range(0, count, step):
            part = [self._less_mean(side, x[:, :, first : first + step]) for side, x in enumerate(group)]
            places = self._places(self.start + first, min(step, count - first))
            paged.store(self.policy.layout, *part, places, self.pool.view(-1, self.pool.shape[2]), self.refused)

    def _keep_sinks(self, group: list[Tensor]) -> None:
        if self.start >= self.pads.most + self.policy.sinks:
            return
        count = group[0].shape[2]
        at = self._sink_tokens() - self.start
        leaves = ((at >= 0) & (at < count))[:, None, :, None]
        at = at.clamp(0, count - 1)[:, None, :, None]
        for exact, x in zip(self.exact, group):
            sinks = exact[:, :, FIRST : self.first]
            sinks.copy_(torch.where(leaves, x.gather(2, at.expand(sinks.shape)), sinks))

    def _learn(self, group: list[Tensor]) -> None:
        """Takes the means of the first tokens that become codes, for rows that have none yet."""
        count, sinks, pads = group[0].shape[2], self.policy.sinks, self.pads
        if self.start - sinks > pads.most:
            return
        begins = pads.each + sinks - self.start
        is_first, counts = begins >= 0, (count - begins.clamp(min=0)).clamp(min=1)[:, None, None]
        # All rows begin together, or what is not coded counts as zeros.
        together = max(pads.most + sinks - self.start, 0) if pads.least == pads.most else 0
        coded = (torch.arange(count, device=self.device) >= begins[:, None])[:, None, :, None]
        for exact, x, least in zip(self.exact, group, self.policy.shares):
            if least is None:
                continue
            x = x[:, :, together:] if pads.least == pads.most else x * coded
            mean = x.sum(2, dtype=torch.float32) / counts
            energy = torch.linalg.vector_norm(x, dim=(2, 3), dtype=torch.float32).square()[..., None]
            share = mean.square().sum(-1, keepdim=True) * counts / energy
            mean = torch.where(share >= least, mean, 0).to(exact.dtype)
            exact[:, :, MEAN] = torch.where(is_first[:, None, None], mean, exact[:, :, MEAN])

    def _less_mean(self, side: int, x: Tensor) -> Tensor:
        """Keys or values as they are encoded, `[batch * tokens, num_kv_heads, head_dim]`."""
        x = x.transpose(1, 2)
        if self.policy.shares[side] is None:
            return x.flatten(0, 1).contiguous()
        less = torch.empty(x.shape, device=x.device)
        return torch.sub(x, self._mean(side), out=less).flatten(0, 1)

    def _mean(self, side: int) -> Tensor:
        return self.exact[side][:, None, :, MEAN].float()

    @_kept
    def _reserve(self, end: int) -> None:
        """Room for the codes of tokens before `end`."""
        blocks = -(-(end - self.pads.least - self.policy.sinks) // GROUP)
        batch, held, size = self.pool.shape
        if blocks > held:
            pool = torch.zeros(batch, max(blocks, held + held // 8), size, dtype=torch.uint8, device=self.device)
            pool[:, :held] = self.pool
            self.pool = pool

    # What attention reads.

    @torch.compiler.disable
    def decoded(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens, with zeros for padding."""
        return self._decoded(0), self._decoded(1)

    def _decoded(self, side: int) -> Tensor:
        of, sinks, batch, end = self.policy.layout, self.policy.sinks, self.batch, self.end
        # The last row takes what a row of few tokens lacks.
        rows = end + 1
        out = torch.zeros(batch, rows, of.num_kv_heads, of.head_dim, device=self.device)
        exact = self.exact[side].transpose(1, 2)
        if self.is_coded:
            firsts = torch.arange(batch, device=self.device) * rows
            offsets = torch.cat([firsts + (self.pads.each + sinks).clamp(max=rows), firsts[-1:] + rows]).int()
            pages, to = self.pool.view(-1, self.pool.shape[2]), out.view(-1, of.num_kv_heads, of.head_dim)
            paged.gather(of, pages, self._table(), offsets, self._lengths(), to, values=side == 1)
            if self.policy.shares[side] is not None:
                out += self._mean(side)
        if self.start and sinks:
            at = self._sink_tokens().clamp(max=end)
            out[torch.arange(batch, device=self.device)[:, None], at] = exact[:, FIRST : self.first].float()
        window = slice(self.first, self.first + end - self.start)
        out[:, self.start : end] = exact[:, window]
        if self.pads.most:
            at = torch.arange(rows, device=self.device)
            out.masked_fill_((at < self.pads.each[:, None])[:, :, None, None], 0)
        return out[:, :end].transpose(1, 2).to(self.exact[side].dtype)

    def attend(self, query: Tensor, seen: Tensor | None, scaling: float, learnt: Tensor | None) -> Tensor:
        """Attention of the newest tokens, `[batch, tokens, num_heads, head_dim]`: one softmax over exact tokens and, as one column,
        the codes, of which the kernel gives the logarithm of the sum. `learnt` are learned sinks."""
        batch, heads, tokens, dim = query.shape
        begin = LEARNT if learnt is not None else MEAN if self.is_coded else FIRST
        end = self.first + self.end - self.start
        keys, values = (x[:, :, begin:end].flatten(0, 1) for x in self.exact)
        shape = (batch, heads, tokens, end - begin)
        logits = _products(query.reshape(len(keys), -1, dim), keys.transpose(1, 2)).view(shape)
        bias = self._bias(tokens, seen)
        logits = logits.mul_(scaling) if bias is None else torch.add(bias[..., begin:], logits, alpha=scaling)
        of_codes = None
        if self.is_coded:
            of_codes, lse = self._attend_codes(query, scaling)
            logits.select(-1, MEAN - begin).add_(lse.transpose(1, 2))
        elif begin == LEARNT:
            logits.select(-1, MEAN).fill_(-torch.inf)
        if learnt is not None:
            logits.select(-1, LEARNT).add_(learnt.detach()[:, None])
        weights = logits.softmax(-1).to(query.dtype)
        out = torch.bmm(weights.view(len(keys), -1, end - begin), values).view(query.shape).transpose(1, 2)
        if of_codes is None:
            return out
        return torch.addcmul(out, weights[..., MEAN - begin, None].transpose(1, 2), of_codes)

    def _attend_codes(self, query: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
        """Attention over codes alone, `[batch, tokens, num_heads, head_dim]`, and the logarithms of its sums, without the means."""
        batch, heads, tokens, dim = query.shape
        rows = query.transpose(1, 2).reshape(-1, heads, dim)
        factor = scaling * dim**0.5
        if abs(factor - 1) > 1e-6:
            rows = rows.float() * factor
        pages = self.pool.view(-1, self.pool.shape[2])
        lse = torch.empty(batch * tokens, heads, device=query.device)
        out = paged.attend_now(rows.contiguous(), pages, self._table(tokens), self._plan(tokens), self.text, lse)
        return out.view(batch, tokens, heads, dim).to(query.dtype), lse.view(batch, tokens, heads)

    # What the library does with a cache.

    def crop(self, length: int) -> None:
        self.start, self.end = min(self.start, length), min(self.end, length)
        if self.pads.most > length:
            self.pads = self._pads([min(pad, length) for pad in self.pads.numbers()])

    @_kept
    def select(self, indices: Tensor) -> None:
        """Keeps the rows of these indices."""
        pads = self.pads
        self.exact = [x.index_select(0, indices) for x in self.exact]
        self.pool = self.pool.index_select(0, indices)
        if pads.least < pads.most or len(indices) != len(pads.each):
            chosen = lambda: Pads(pads.each.index_select(0, indices), pads.least, pads.most, None)
            self.pads = self.shared.get("moved", (pads, indices), chosen)

    @_kept
    def move(self, device: torch.device) -> None:
        """Follows a model to another GPU."""
        self.exact = [x.to(device) for x in self.exact]
        self.pool, self.refused = self.pool.to(device), self.refused.to(device)
        self.pads = self._pads(self.pads.numbers())

    @_kept
    def copy(self, shared: Shared) -> DeviceRows:
        other = DeviceRows.__new__(DeviceRows)
        other.__dict__.update(self.__dict__)
        other.shared = shared
        other.exact, other.pool, other.refused = [x.clone() for x in self.exact], self.pool.clone(), self.refused.clone()
        return other

    def state(self) -> dict[str, Any]:
        """What a file can have, in main memory."""
        used = self.first + self.end - self.start
        exact = [x[:, :, :used].cpu() for x in self.exact]
        kept = {"layout": self.text, "start": self.start, "end": self.end, "follows": self.follows}
        return {**kept, "pads": self.pads.numbers(), "exact": exact, "codes": self.pool.cpu()}

    @classmethod
    @_kept
    def restored(cls, state: dict[str, Any], policy: Policy, shared: Shared, like: Tensor) -> DeviceRows:
        rows = cls(policy, shared, len(state["codes"]), like)
        if state["layout"] != rows.text:
            raise TqkvError(f"tokens of the layout {state['layout']!r} are not valid: expected {rows.text!r}, that of this cache")
        rows.start, rows.end, rows.follows = state["start"], state["end"], state["follows"]
        rows.pads = rows._pads(state["pads"])
        for exact, x in zip(rows.exact, state["exact"]):
            exact[:, :, : x.shape[2]] = x.to(exact)
        rows.pool = state["codes"].to(like.device)
        return rows


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices in float32."""
    if a.is_cuda and a.dtype != torch.float32 and hasattr(torch.ops.aten.bmm, "dtype"):
        return torch.ops.aten.bmm.dtype(a, b, torch.float32)
    return torch.bmm(a.float(), b.float())
