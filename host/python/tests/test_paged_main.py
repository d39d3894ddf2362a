"""`tqkv.paged` in main memory: operators of PyTorch over the blocks of an engine, against PyTorch's attention over what the codec gives back."""

import random

import pytest

torch = pytest.importorskip("torch")

import tqkv
from tqkv import paged

BLOCKS = 9


def decoded(layout, x, side):
    """What the codec makes of vectors."""
    codec = tqkv.Codec(layout.kv.split(",")[-1 if side else 0], layout.head_dim)
    return codec.decode(codec.encode(x.float().contiguous()), torch.float32)


def exact(q, k, v, start):
    """Attention of a query, `[heads, head_dim]`, to tokens from `start` on, and the logarithms of the sums."""
    k, v = (x[start:].transpose(0, 1).repeat_interleave(len(q) // x.shape[1], 0) for x in (k, v))
    logits = (q.float()[:, None] @ k.transpose(1, 2)).squeeze(1) / q.shape[-1] ** 0.5
    return (logits.softmax(-1)[:, None] @ v).squeeze(1), logits.logsumexp(-1)


@pytest.mark.parametrize("seed", range(12))
def test_random_sequences_attend_as_in_pytorch(seed):
    of, draw = random.Random(seed), torch.Generator().manual_seed(seed)
    kv_heads, group, dim = of.choice([1, 2, 3]), of.choice([1, 2, 4]), of.choice([32, 64, 96, 128])
    dtype, block = of.choice([torch.float32, torch.float16, torch.bfloat16]), of.choice([32, 64, 128, 192])
    layout = paged.Layout(kv_heads * group, kv_heads, dim, of.choice(["s4", "t4,t2", "i8,s4", "s3", "t3,s2"]), block)
    held = torch.full((BLOCKS, layout.block_bytes("cpu") + of.choice([0, 64])), 255, dtype=torch.uint8)
    pages = held[:, : layout.block_bytes("cpu")]
    free, tables, lengths, rows = list(range(BLOCKS)), [], [], []
    of.shuffle(free)
    for _ in range(3):
        length = of.randrange(1, 3 * block)
        table = [free.pop() for _ in range(-(-length // block))]
        k, v = (torch.randn(length, kv_heads, dim, generator=draw).to(dtype) for _ in range(2))
        for part in torch.arange(length).split(of.choice([1, 7, 200])):
            places = torch.tensor([table[at // block] * block + at % block for at in part.tolist()] + [-1])
            refused = torch.zeros(1, dtype=torch.int32)
            more = [torch.cat([x[part], x[:1]]) for x in (k, v)]
            paged.store(layout, *more, places, pages, refused)
            assert refused.item() == 0
        tables.append(torch.tensor(table + [-5] * (3 - len(table)), dtype=torch.int32))
        lengths.append(length)
        rows.append([decoded(layout, x, side) for side, x in enumerate((k, v))])
    assert (held[:, layout.block_bytes("cpu") :] == 255).all()
    table, counts, queries = torch.stack(tables), torch.tensor(lengths, dtype=torch.int32), of.choice([1, 1, 3])
    starts = torch.tensor([of.randrange(length) for length in lengths], dtype=torch.int32) if of.random() < 0.5 else None
    plan = paged.new_plan(layout, 3 * queries, "cpu")
    paged.plan(layout, counts, plan, max_tokens=3 * block, queries=queries, starts=starts)
    q = torch.randn(3 * queries, kv_heads * group, dim, generator=draw).to(dtype)
    out, lse = paged.attend_lse(layout, q, pages, table, plan)
    assert torch.equal(out, paged.attend(layout, q, pages, table, plan)) and out.dtype == dtype
    for row in range(3 * queries):
        sequence = row // queries
        length, start = lengths[sequence] + 1 - queries + row % queries, 0 if starts is None else int(starts[sequence])
        if length <= start:
            assert (out[row] == 0).all() and (lse[row] == -torch.inf).all()
            continue
        want, want_lse = exact(q[row], *(x[:length] for x in rows[sequence]), start)
        assert (out[row].float() - want).abs().max() < 0.03 * rows[sequence][1].abs().max()
        assert (lse[row] - want_lse).abs().max() < 0.1
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    for side in range(2):
        got = torch.full((sum(lengths) + 1, kv_heads, dim), 7.0, dtype=dtype)
        paged.gather(layout, pages, table, offsets, counts, got, values=bool(side))
        assert torch.equal(got[:-1], torch.cat([of[side] for of in rows]).to(dtype)) and (got[-1] == 7).all()


def test_a_compiled_step_is_one_graph():
    layout = paged.Layout(4, 2, 64, "s4", 32)
    pages = torch.zeros(4, layout.block_bytes("cpu"), dtype=torch.uint8)
    plan = paged.new_plan(layout, 1, "cpu")
    table, places = torch.tensor([[2, 1]], dtype=torch.int32), torch.tensor([64])

    def step(q, k, v, lengths):
        paged.plan(layout, lengths, plan, max_tokens=64)
        paged.store(layout, k, v, places, pages)
        return paged.attend(layout, q, pages, table, plan)

    q, k, v = torch.randn(1, 4, 64), torch.randn(1, 2, 64), torch.randn(1, 2, 64)
    length = torch.ones(1, dtype=torch.int32)
    want = step(q, k, v, length)
    assert torch.equal(torch.compile(step, fullgraph=True, backend="eager")(q, k, v, length), want)


def test_what_main_memory_has_not_is_refused_by_name():
    layout = paged.Layout(4, 2, 64, "s4", 32)
    pages = torch.zeros(4, layout.block_bytes("cpu"), dtype=torch.uint8)
    k = torch.ones(1, 2, 64)
    at = torch.zeros(1, dtype=torch.int64)
    for call, reason in [
        (lambda: paged.Layout(4, 2, 64, "s4", 16).block_bytes("cpu"), "blocks of 16 tokens are not valid: expected a multiple of 32 up to 512"),
        (lambda: paged.Layout(4, 2, 64, "s9").block_bytes("cpu"), "s9"),
        (lambda: paged.store(layout, k, k, at, pages[:, :-64]), "blocks of"),
        (lambda: paged.store(layout, k[:, :1], k, at, pages), r"k of the shape \[1, 1, 64\] is not valid: expected \[tokens, 2, 64\]"),
        (lambda: paged.store(layout, k, k, at.int(), pages), "places of the type int32 is not valid: expected int64"),
        (lambda: paged.attend(layout, torch.ones(3, 4, 64), pages, torch.zeros(1, 1).int(), paged.new_plan(layout, 1, "cpu")), "a plan of 1 rows"),
    ]:
        with pytest.raises(tqkv.TqkvError, match=reason):
            call()
    refused = torch.zeros(1, dtype=torch.int32)
    paged.store(layout, k * torch.nan, k, at, pages, refused)
    assert refused.item() == 1
