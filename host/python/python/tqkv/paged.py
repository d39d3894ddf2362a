"""Compressed keys and values in the pages of an engine, in main memory or on an NVIDIA GPU: custom operators over tensors of PyTorch.

An engine owns the pages, the block tables and the lengths. Each function is an operator of `torch.library`, so `torch.compile` passes
with `fullgraph=True`, and a CUDA graph may hold it: nothing waits for the GPU or reads from it. There all work runs on PyTorch's current
stream, and in main memory on PyTorch's threads (`torch.set_num_threads`).

    layout = paged.Layout(num_heads=32, num_kv_heads=8, head_dim=128, kv="s4")
    pages = torch.zeros(blocks, layout.block_bytes("cuda"), dtype=torch.uint8, device="cuda")  # of each layer
    plan = paged.new_plan(layout, sequences, "cuda")
    # A step: the plan once, then store and attend in each layer.
    paged.plan(layout, lengths, plan, max_tokens=table.shape[1] * layout.block_tokens)
    paged.store(layout, k, v, places, pages)
    out = paged.attend(layout, q, pages, table, plan)

The place of a token is the number of its block times the tokens of a block, plus its place there, which engines call a slot mapping.
Places, lengths and block numbers that are wrong give wrong results, but nothing outside of `pages` is read or written. A plan is what
`plan` has written and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._arrays import count, words
from ._native import TqkvError

__all__ = ["Layout", "attend", "attend_lse", "copy", "gather", "new_plan", "plan", "store"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Heads and codecs of pages, the same in all layers. On a GPU `kv` takes the codecs `s2 s3 s4 i8 t2 t3 t4`, for keys and values or
    both, and blocks have 64, 128 or another power of two of tokens, because the kernels read 64 at once. In main memory all codecs and
    head dims of a cache have kernels, and blocks have a multiple of 32 tokens up to 512."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv: str = "s4"
    block_tokens: int = 64
    seed: int = _native.SEED
    scale_mode: str = "unbiased"
    effort: str = "default"

    def __post_init__(self) -> None:
        _spec(self)
        count("block_tokens", self.block_tokens)

    def block_bytes(self, device: Any = "cuda") -> int:
        """Bytes of the keys and values of a block on a device. The blocks of an engine may be further apart: on a GPU by a multiple of 16
        for each 64 tokens, and in main memory by a multiple of 64."""
        if _is_main(torch.device(device)):
            return int(_blocks_of(_text(self)).block_bytes)
        if not hasattr(_native, "paged_block_bytes"):
            raise TqkvError("tqkv.paged on a GPU is not valid in this package: expected a build with maturin build --features cuda")
        return _block_bytes(self)


def _is_main(device: torch.device) -> bool:
    """True if tensors of the device are in main memory."""
    return device.type == "cpu"


@functools.lru_cache(maxsize=None)
def _block_bytes(layout: Layout) -> int:
    held: int = _native.paged_block_bytes(_spec(layout), count("block_tokens", layout.block_tokens))
    return held


def _spec(layout: Layout) -> dict[str, Any]:
    return {
        "num_heads": count("num_heads", layout.num_heads),
        "num_kv_heads": count("num_kv_heads", layout.num_kv_heads),
        "head_dim": count("head_dim", layout.head_dim),
        "kv": words("kv", layout.kv),
        "seed": count("seed", layout.seed),
        "scale_mode": words("scale_mode", layout.scale_mode),
        "effort": words("effort", layout.effort),
    }


# An operator takes texts and numbers, so a layout is one text. What may have spaces is its end.
def _text(layout: Layout) -> str:
    shape = f"{layout.num_heads} {layout.num_kv_heads} {layout.head_dim} {layout.block_tokens}"
    return f"{shape} {layout.seed} {layout.scale_mode} {layout.effort} {layout.kv}"


@functools.lru_cache(maxsize=None)
def _layout(text: str) -> Layout:
    heads, kv_heads, dim, tokens, seed, mode, effort, kv = text.split(" ", 7)
    return Layout(int(heads), int(kv_heads), int(dim), kv, int(tokens), int(seed), mode, effort)


@functools.lru_cache(maxsize=None)
def _blocks_of(text: str) -> Any:
    """The work in main memory."""
    layout = _layout(text)
    return _native.Blocks(_spec(layout), layout.block_tokens)


@functools.lru_cache(maxsize=None)
def _kernels(text: str, device: int, rows: bool = False) -> Any:
    """Compiled once for a layout and a device, which takes about a second. Those with `rows` keep rows of exact tokens and attend to them."""
    layout = _layout(text)
    layout.block_bytes("cuda")
    return _native.Paged(_spec(layout), device, rows)


@dataclasses.dataclass(frozen=True)
class ExactRows:
    """Exact tokens of a layer, next to its pages on a GPU: keys and values as the model computed them."""

    keys: Tensor
    """`[num_kv_heads, places, head_dim]`."""
    values: Tensor
    held: int
    """Places of a head that may hold a token, the first ones."""
    places: Tensor
    """int64: where the tokens of a call go, or `[rows, columns]`, what each query token sees. Any other number is no token."""

    def _of(self, layout: Layout, like: Tensor) -> tuple[Any, Any, int, tuple[int, int]]:
        sides = (("exact keys", self.keys), ("exact values", self.values))
        for name, x in sides:
            _has_shape(name, x.transpose(0, 1), layout.num_kv_heads, layout.head_dim)
        keys, values = (_floats(name, x, like, x.is_contiguous()) for name, x in sides)
        return keys, values, self.held, _numbers("places of exact rows", self.places, like, torch.int64)


def _device(tensor: Tensor) -> tuple[int, int]:
    """The number of a tensor's device, and PyTorch's current stream there."""
    if not tensor.is_cuda:
        raise TqkvError(f"a tensor on the device {tensor.device} is not valid: expected one in main memory or on an NVIDIA GPU")
    return tensor.get_device(), torch.cuda.current_stream(tensor.device).cuda_stream


def _address(tensor: Tensor) -> int:
    return tensor.data_ptr()


def _room(like: Tensor, size: int) -> Tensor:
    """Memory for a call to work in. It must live until the kernels are launched; then PyTorch gives it away in the order of the stream."""
    return torch.empty(max(size, 1), dtype=torch.uint8, device=like.device)


def _is(name: str, tensor: Tensor, like: Tensor, *dtypes: torch.dtype) -> None:
    if tensor.dtype not in dtypes:
        accepted = " or ".join(str(dtype).replace("torch.", "") for dtype in dtypes)
        raise TqkvError(f"{name} of the type {str(tensor.dtype).replace('torch.', '')} is not valid: expected {accepted}")
    if tensor.device != like.device:
        raise TqkvError(f"{name} on the device {tensor.device} is not valid: expected {like.device}")


def _numbers(name: str, tensor: Tensor, like: Tensor, dtype: torch.dtype) -> tuple[int, int]:
    _is(name, tensor, like, dtype)
    if not tensor.is_contiguous():
        raise TqkvError(f"{name} in this memory order is not valid: expected C order, as .contiguous() makes it")
    return _address(tensor), tensor.numel()


def _floats(name: str, tensor: Tensor, like: Tensor, in_order: bool) -> tuple[int, int, str]:
    _is(name, tensor, like, torch.float32, torch.float16, torch.bfloat16)
    if not in_order:
        raise TqkvError(f"{name} in this memory order is not valid: expected C order, as .contiguous() makes it")
    return _address(tensor), tensor.numel(), str(tensor.dtype).replace("torch.", "")


def _has_shape(name: str, tensor: Tensor, heads: int, dim: int) -> None:
    if tensor.dim() != 3 or tensor.shape[1:] != (heads, dim):
        raise TqkvError(f"{name} of the shape {list(tensor.shape)} is not valid: expected [tokens, {heads}, {dim}]")


def _vectors(name: str, tensor: Tensor, like: Tensor, heads: int, dim: int) -> tuple[int, int, str]:
    _has_shape(name, tensor, heads, dim)
    return _floats(name, tensor, like, tensor.is_contiguous())


def _tokens(name: str, tensor: Tensor, like: Tensor, heads: int, dim: int) -> tuple[int, int, int, str]:
    """Vectors of tokens that may be apart, such as the keys among the results of one product."""
    _has_shape(name, tensor, heads, dim)
    address, values, dtype = _floats(name, tensor, like, tensor[:1].is_contiguous() and tensor.stride(0) >= 0)
    return address, values, tensor.stride(0), dtype


def _blocks(layout: Layout, pages: Tensor) -> tuple[int, int, int, int]:
    """Address, number, distance and tokens of the blocks, which are the first axis of `pages`."""
    if pages.dtype not in (torch.uint8, torch.int8) or pages.dim() < 2 or not pages[:1].is_contiguous():
        raise TqkvError(
            f"pages of the type {str(pages.dtype).replace('torch.', '')} and the shape {list(pages.shape)} are not valid: "
            "expected uint8 with an axis of blocks, each of which is contiguous"
        )
    held, least = pages[0].numel(), layout.block_bytes(pages.device)
    if held < least:
        raise TqkvError(f"blocks of {held} bytes are not valid: expected at least {least}")
    stride = pages.stride(0) if pages.shape[0] > 1 else held
    return _address(pages), pages.shape[0], stride, layout.block_tokens


def _table(table: Tensor, like: Tensor) -> tuple[tuple[int, int], int]:
    _is("table", table, like, torch.int32)
    if table.dim() != 2 or (table.shape[1] > 1 and table.stride(1) != 1):
        raise TqkvError(f"table of the shape {list(table.shape)} is not valid: expected [sequences, blocks], rows in order")
    # Rows of an engine's table may be part of longer ones.
    row = table.stride(0) if table.shape[0] > 1 else table.shape[1]
    return (_address(table), max(0, (table.shape[0] - 1) * row + table.shape[1])), row


def _array(name: str, tensor: Tensor, like: Tensor, *dtypes: torch.dtype) -> Any:
    """The memory of a tensor as an array, in which bfloat16 is uint16."""
    _is(name, tensor, like, *dtypes)
    tensor = tensor.detach().contiguous()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _rows(name: str, tensor: Tensor, like: Tensor, heads: int, dim: int) -> Any:
    _has_shape(name, tensor, heads, dim)
    return _array(name, tensor, like, torch.float32, torch.float16, torch.bfloat16)


def _pool(layout: Layout, pages: Tensor) -> tuple[Any, int]:
    """The memory of all blocks as bytes, and the bytes from one to the next."""
    _, blocks, stride, _ = _blocks(layout, pages)
    if stride % 64:
        raise TqkvError(f"blocks that are {stride} bytes apart are not valid: expected a multiple of 64")
    held = layout.block_bytes(pages.device)
    return pages.view(torch.uint8).as_strided(((blocks - 1) * stride + held,), (1,)).detach().numpy(), stride


def _rows_of(plan: Tensor, rows: int) -> tuple[Any, Any]:
    """The lengths and the first tokens of the rows of a plan in main memory."""
    words = _array("plan", plan, plan, torch.int32)
    if 2 * rows > len(words):
        raise TqkvError(f"a plan of {len(words) // 2} rows is not valid: expected {rows}")
    return words[:rows], words[len(words) // 2 :][:rows]


def _step_main(table: Tensor, plan: Tensor, rows: int) -> tuple[Any, Any, Any]:
    """What the layers of a step share in main memory: the blocks of each row, its length, and the first token that it sees."""
    _table(table, plan)
    if rows and (not table.shape[0] or rows % table.shape[0]):
        raise TqkvError(f"{rows} query tokens of {table.shape[0]} sequences are not valid: expected the same number of each")
    if rows > table.shape[0]:
        table = table.repeat_interleave(rows // table.shape[0], 0)
    return (_array("table", table, plan, torch.int32), *_rows_of(plan, rows))


def _attend_main(
    blocks: Any,
    q: Tensor,
    pool: tuple[Any, int],
    step: tuple[Any, Any, Any],
    lse: Tensor | None = None,
    exact: tuple[Any, Any, Any, int] | None = None,
    sinks: Any = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Attention in main memory. `pool` is of `_pool`, `step` of `_step_main`."""
    out = torch.empty(q.shape, dtype=torch.float32)
    sums = torch.empty(q.shape[:2], dtype=torch.float32) if lse is None else lse
    blocks.attend(_array("q", q, q, q.dtype), pool, *step, exact, sinks, (scale, soft_cap), out.numpy(), _array("lse", sums, q, torch.float32))
    return out.to(q.dtype)


def store_now(
    k: Tensor, v: Tensor, places: Tensor, pages: Tensor, refused: Tensor | None, layout: str, exact: ExactRows | None = None
) -> None:
    """What the operator of storing does. On a GPU `exact` gets rows of the same call."""
    of = _layout(layout)
    if _is_main(pages.device):
        k_v = [_rows(name, x, pages, of.num_kv_heads, of.head_dim) for name, x in (("k", k), ("v", v))]
        at, there = _array("places", places, pages, torch.int64), pages.shape[0] * of.block_tokens
        wrong = _blocks_of(layout).store(*k_v, at, _pool(of, pages))
        if refused is not None and (wrong or (at >= there).any()):
            refused.fill_(1)
        return
    device, stream = _device(pages)
    kernels = _kernels(layout, device, exact is not None)
    vectors = [_tokens(name, x, pages, of.num_kv_heads, of.head_dim) for name, x in (("k", k), ("v", v))]
    at = _numbers("places", places, pages, torch.int64)
    work = _room(pages, kernels.store_room(at[1]))
    rows = None if exact is None else exact._of(of, pages)
    to = None if refused is None else _numbers("refused", refused, pages, torch.int32)
    kernels.store(stream, *vectors, at, _blocks(of, pages), rows, (_address(work), work.numel()), to)


@torch.library.custom_op("tqkv::paged_store", mutates_args=("pages", "refused"))
def _store(k: Tensor, v: Tensor, places: Tensor, pages: Tensor, refused: Tensor | None, layout: str) -> None:
    store_now(k, v, places, pages, refused, layout)


@torch.library.custom_op("tqkv::paged_plan", mutates_args=("plan",))
def _plan(lengths: Tensor, starts: Tensor | None, plan: Tensor, queries: int, max_tokens: int, layout: str) -> None:
    if _is_main(plan.device):
        half = plan.numel() // 2
        of_rows = torch.arange(1 - queries, 1, dtype=torch.int32)
        rows = (lengths.clamp(0, max_tokens)[:, None] + of_rows).clamp(min=0).flatten()
        if len(rows) > half:
            raise TqkvError(f"a plan of {half} rows is not valid: expected {len(rows)}")
        plan[: len(rows)] = rows
        plan[half : half + len(rows)] = 0 if starts is None else starts.repeat_interleave(queries)
        return
    device, stream = _device(plan)
    at = _numbers("lengths", lengths, plan, torch.int32)
    first = None if starts is None else _numbers("starts", starts, plan, torch.int32)
    _kernels(layout, device).plan(stream, at, first, queries, max_tokens, _numbers("plan", plan, plan, torch.int32))


def attend_now(
    q: Tensor,
    pages: Tensor,
    table: Tensor,
    plan: Tensor,
    layout: str,
    lse: Tensor | None = None,
    *,
    out: Tensor | None = None,
    scale: float | None = None,
    exact: ExactRows | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """What the operators of attention do. Outside of a graph this call is shorter than theirs. On a GPU it also attends to `exact` rows and takes
    the weight of learned `sinks`, `[num_heads]`."""
    of = _layout(layout)
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if _is_main(pages.device):
        _has_shape("q", q, of.num_heads, of.head_dim)
        return out.copy_(_attend_main(_blocks_of(layout), q, _pool(of, pages), _step_main(table, plan, q.shape[0]), lse, scale=scale))
    device, stream = _device(pages)
    kernels = _kernels(layout, device, exact is not None or sinks is not None)
    given, to = _tokens("q", q, pages, of.num_heads, of.head_dim), _vectors("out", out, pages, of.num_heads, of.head_dim)
    work = _room(pages, kernels.attend_room(q.shape[0]))
    at = _numbers("plan", plan, pages, torch.int32)
    sums = None if lse is None else _floats("lse", lse, pages, lse.is_contiguous())
    rows = None if exact is None else exact._of(of, pages)
    logits = None if sinks is None else _floats("sinks", sinks, pages, sinks.is_contiguous())
    memory = _address(work), work.numel()
    kernels.attend(stream, given, _blocks(of, pages), _table(table, pages), at, memory, to, scale, rows, logits, sums)
    return out


@torch.library.custom_op("tqkv::paged_attend", mutates_args=())
def _attend(q: Tensor, pages: Tensor, table: Tensor, plan: Tensor, layout: str, scale: float | None = None) -> Tensor:
    return attend_now(q, pages, table, plan, layout, scale=scale)


@torch.library.custom_op("tqkv::paged_attend_to", mutates_args=("out",))
def _attend_to(q: Tensor, pages: Tensor, table: Tensor, plan: Tensor, out: Tensor, layout: str, scale: float | None = None) -> None:
    attend_now(q, pages, table, plan, layout, out=out, scale=scale)


@torch.library.custom_op("tqkv::paged_attend_lse", mutates_args=())
def _attend_lse(q: Tensor, pages: Tensor, table: Tensor, plan: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    return attend_now(q, pages, table, plan, layout, lse), lse


@torch.library.custom_op("tqkv::paged_gather", mutates_args=("out",))
def _gather(pages: Tensor, table: Tensor, offsets: Tensor, lengths: Tensor, out: Tensor, values: bool, layout: str) -> None:
    of = _layout(layout)
    if _is_main(pages.device):
        _vectors("out", out, pages, of.num_kv_heads, of.head_dim)
        _table(table, pages)
        wide = out if out.dtype == torch.float32 else out.float()
        tables = (_array(name, x, pages, torch.int32) for name, x in (("table", table), ("lengths", lengths), ("offsets", offsets[: len(lengths)])))
        _blocks_of(layout).gather(values, _pool(of, pages), *tables, wide.numpy())
        if wide is not out:
            out.copy_(wide)
        return
    device, stream = _device(pages)
    to = _vectors("out", out, pages, of.num_kv_heads, of.head_dim)
    at = (_numbers(name, x, pages, torch.int32) for name, x in (("offsets", offsets), ("lengths", lengths)))
    _kernels(layout, device).gather(stream, values, _blocks(of, pages), _table(table, pages), *at, to)


@_attend.register_fake
def _(q: Tensor, pages: Tensor, table: Tensor, plan: Tensor, layout: str, scale: float | None = None) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


@_attend_to.register_fake
def _(q: Tensor, pages: Tensor, table: Tensor, plan: Tensor, out: Tensor, layout: str, scale: float | None = None) -> None:
    return None


@_attend_lse.register_fake
def _(q: Tensor, pages: Tensor, table: Tensor, plan: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(q.shape[:2], dtype=torch.float32)


@_store.register_fake
def _(k: Tensor, v: Tensor, places: Tensor, pages: Tensor, refused: Tensor | None, layout: str) -> None:
    return None


@_plan.register_fake
def _(lengths: Tensor, starts: Tensor | None, plan: Tensor, queries: int, max_tokens: int, layout: str) -> None:
    return None


@_gather.register_fake
def _(pages: Tensor, table: Tensor, offsets: Tensor, lengths: Tensor, out: Tensor, values: bool, layout: str) -> None:
    return None


def store(layout: Layout, k: Tensor, v: Tensor, places: Tensor, pages: Tensor, refused: Tensor | None = None) -> None:
    """Encodes keys and values, `[tokens, num_kv_heads, head_dim]` with keys after RoPE, to `places` (int64) of `pages`. Those of a token are
    contiguous. Tokens may be apart, which takes no copy on a GPU.

    A token of a negative place is skipped. A vector that is not finite, or whose scale does not fit float16, becomes zeros. Then, and
    for a place beyond the pool, `refused` (int32, one number) becomes 1."""
    _store(k, v, places, pages, refused, _text(layout))


def new_plan(layout: Layout, rows: int, device: Any) -> Tensor:
    """Memory for the plan of a step of `rows` query tokens: int32 of a size that depends on them and on the device."""
    at = torch.empty(0, dtype=torch.int32, device=device)
    if _is_main(at.device):
        # The lengths of the rows, and the first token that each sees.
        return torch.zeros(2 * count("rows", rows), dtype=torch.int32)
    return torch.empty(_kernels(_text(layout), _device(at)[0]).plan_words(count("rows", rows)), dtype=torch.int32, device=device)


def plan(layout: Layout, lengths: Tensor, plan: Tensor, max_tokens: int, queries: int = 1, starts: Tensor | None = None) -> None:
    """Divides the work of a step among the warps of the GPU. All layers share the plan.

    `lengths` (int32) has the tokens of each sequence, those of this step included. The last `queries` tokens of each are query tokens,
    each of which sees the tokens up to itself. `max_tokens` is the number of tokens in a row of the block table; longer lengths are cut,
    and those below 0 are 0.

    `starts` (int32) has the first token that each sequence's query tokens see, for a sliding window, or where the tokens before it are
    attended elsewhere. Without it they see all from the first on."""
    _plan(lengths, starts, plan, queries, max_tokens, _text(layout))


def attend(
    layout: Layout, q: Tensor, pages: Tensor, table: Tensor, plan: Tensor, *, scale: float | None = None, out: Tensor | None = None
) -> Tensor:
    """Attention of `q`, `[rows, num_heads, head_dim]`, in the order of the plan. `table` (int32, `[sequences, blocks]`) has the numbers
    of each sequence's blocks. The result has the shape of `q`, and its type or that of `out`, which it is written to if it is given. A sequence
    of no tokens gives zeros, and a query that is not finite gives NaN. `scale` is the factor of logits, 1/sqrt(head_dim) without it. The vectors of
    a query token are contiguous. Tokens may be apart, which takes no copy on a GPU."""
    if out is None:
        return _attend(q, pages, table, plan, _text(layout), scale)
    _attend_to(q, pages, table, plan, out, _text(layout), scale)
    return out


def attend_lse(layout: Layout, q: Tensor, pages: Tensor, table: Tensor, plan: Tensor) -> tuple[Tensor, Tensor]:
    """`attend`, and for each row and head the natural logarithm of the sum of the exponentials of its logits, `[rows, num_heads]` in
    float32. With it attention over other tokens can be merged with this one. A sequence of no tokens gives minus infinity."""
    return _attend_lse(q, pages, table, plan, _text(layout))


def gather(layout: Layout, pages: Tensor, table: Tensor, offsets: Tensor, lengths: Tensor, out: Tensor, *, values: bool) -> None:
    """Decodes the first `lengths[s]` (int32) keys, or values, of each sequence to rows of `out`, `[rows, num_kv_heads, head_dim]`, from
    row `offsets[s]` (int32, one more than sequences) on. Other rows stay as they are."""
    _gather(pages, table, offsets, lengths, out, values, _text(layout))


def copy(pages: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copies blocks: `targets[i]` becomes what `sources[i]` was before the call (int64)."""
    pages.index_copy_(0, targets, pages.index_select(0, sources))
