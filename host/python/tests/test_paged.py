"""`tqkv.paged`: operators of PyTorch over pages of an engine, on a GPU, or on a fake driver that has the memory of PyTorch's tensors.

The package needs the feature `cuda`. Without a GPU, `TQKV_FAKE_CUDA` must name the library that `cargo build -p tqkv-gpu-fake` makes.
"""

import os

import pytest

torch = pytest.importorskip("torch")

import tqkv
from test_gpu import Gpu
from tqkv import _native

if not hasattr(_native, "Paged"):
    pytest.skip("built without the feature cuda", allow_module_level=True)

from tqkv import paged

HEADS, KV_HEADS, DIM, BLOCKS = 4, 2, 64, 6
PATH = os.environ.get("TQKV_FAKE_CUDA")
DEVICE = "cuda" if torch.cuda.is_available() and not PATH else "cpu"


@pytest.fixture
def gpu(monkeypatch):
    """All tensors are on the GPU. Without one, those in main memory are those of the fake driver's device 0."""
    if DEVICE == "cuda":
        torch.set_default_device("cuda")
        yield
        torch.set_default_device(None)
        return
    if not PATH:
        pytest.skip("there is no GPU, and TQKV_FAKE_CUDA names no driver of paper")
    gpu = Gpu(PATH)

    def address(tensor):
        # Tensors of a call may share a storage.
        held = tensor.untyped_storage()
        gpu.driver.tqkv_fake_map(gpu_int(held.data_ptr()), gpu_int(held.nbytes()))
        return tensor.data_ptr()

    monkeypatch.setattr(paged, "_is_main", lambda device: False)
    monkeypatch.setattr(paged, "_device", lambda tensor: (0, gpu.stream.value))
    monkeypatch.setattr(paged, "_address", address)
    yield


def gpu_int(value):
    import ctypes

    return ctypes.c_size_t(value)


@pytest.fixture
def layout():
    return paged.Layout(HEADS, KV_HEADS, DIM, kv="s4,s3")


def rows(tokens, heads, seed, dtype=torch.float32):
    drawn = torch.randn(tokens, heads, DIM, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return drawn.to(DEVICE, dtype)


def new_pages(layout, spare=48):
    """Blocks that are further apart than they are long, between which nothing may change."""
    held = torch.full((BLOCKS, layout.block_bytes() + spare), 255, dtype=torch.uint8)
    return held, held[:, : layout.block_bytes()]


def places(table, tokens, block=64):
    at = torch.arange(tokens)
    return table[at // block].long() * block + at % block


def decoded(name, x):
    codec = tqkv.Codec(name, DIM)
    return codec.decode(codec.encode(x.float().cpu()), torch.float32).to(DEVICE)


def exact(q, k, v):
    """Attention in f64 of queries `[rows, heads, dim]`, each over its first tokens of k and v."""
    group = HEADS // KV_HEADS
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    logits = torch.einsum("hd,thd->ht", q.double(), k) / DIM**0.5
    return torch.einsum("ht,thd->hd", torch.softmax(logits, -1), v)


def test_a_gpu_that_gains_little_says_so(gpu, layout):
    if not PATH:
        pytest.skip("the third GPU of the fake driver has slow integer products")
    with pytest.warns(RuntimeWarning, match="tqkv: int8 tensor cores are slow here"):
        _native.Paged(paged._spec(layout), 2, False)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 2e-4), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_attention_and_gathers_are_those_of_the_codes(gpu, layout, dtype, tolerance):
    held, pages = new_pages(layout)
    lengths, table = torch.tensor([70, 0, 5], dtype=torch.int32), torch.tensor([[4, 1], [-1, 99], [2, -7]], dtype=torch.int32)
    k, v = rows(75, KV_HEADS, 1, dtype), rows(75, KV_HEADS, 2, dtype)
    at = torch.cat([places(table[0], 70), places(table[2], 5)])
    # Padding tokens after the step's own.
    padded = [torch.cat([x, torch.full_like(x[:3], float("nan"))]) for x in (k, v)]
    refused = torch.zeros(1, dtype=torch.int32)
    paged.store(layout, *padded, torch.cat([at, torch.tensor([-1, -1, -1])]), pages, refused)
    assert refused.item() == 0 and (held[:, layout.block_bytes() :] == 255).all()

    q, plan = rows(3, HEADS, 3, dtype), paged.new_plan(layout, 3, DEVICE)
    paged.plan(layout, lengths, plan, max_tokens=128)
    out = paged.attend(layout, q, pages, table, plan)
    assert out.dtype == dtype and not out[1].any()
    again, lse = paged.attend_lse(layout, q, pages, table, plan)
    assert torch.equal(again, out) and lse.dtype == torch.float32 and (lse[1] == -torch.inf).all()
    of_k, of_v = decoded("s4", k), decoded("s3", v)
    for row, part in ((0, slice(0, 70)), (2, slice(70, 75))):
        assert (out[row].double() - exact(q[row].float(), of_k[part], of_v[part])).abs().max() < tolerance
        logits = torch.einsum("hd,thd->ht", q[row].double(), of_k[part].double().repeat_interleave(HEADS // KV_HEADS, 1)) / DIM**0.5
        assert (lse[row] - logits.logsumexp(-1)).abs().max() < 1e-4

    offsets = torch.tensor([0, 80, 80, 85], dtype=torch.int32)
    for values, want in ((False, of_k), (True, of_v)):
        back = torch.full((85, KV_HEADS, DIM), 7.0, dtype=dtype)
        paged.gather(layout, pages, table, offsets, lengths, back, values=values)
        assert torch.equal(back[:70], want[:70].to(dtype)) and torch.equal(back[80:], want[70:].to(dtype))
        assert (back[70:80] == 7).all()

    # A copy of a block is the block; a table may be part of a wider one.
    paged.copy(pages, torch.tensor([4, 1]), torch.tensor([0, 3]))
    wide = torch.full((3, 5), 1 << 30, dtype=torch.int32)
    wide[:, :2] = table
    wide[0, :2] = torch.tensor([0, 3])
    assert torch.equal(paged.attend(layout, q, pages, wide[:, :2], plan), out)


def test_tokens_may_be_apart_and_results_go_where_the_caller_says(gpu, layout):
    _, pages = new_pages(layout)
    table, lengths = torch.tensor([[4], [2]], dtype=torch.int32), torch.tensor([1, 1], dtype=torch.int32)
    products = rows(2, HEADS + 2 * KV_HEADS, 1, torch.float16)
    q, k, v = products.split([HEADS, KV_HEADS, KV_HEADS], 1)
    assert not k.is_contiguous()
    paged.store(layout, k, v, table[:, 0].long() * 64, pages)
    plan, out = paged.new_plan(layout, 2, DEVICE), torch.zeros(2, HEADS, DIM)
    paged.plan(layout, lengths, plan, max_tokens=64)
    assert paged.attend(layout, q, pages, table, plan, scale=0.3, out=out) is out
    want = decoded("s3", v).repeat_interleave(HEADS // KV_HEADS, 1)
    assert out.dtype == torch.float32 and (out - want).abs().max() < 2e-4
    one = paged.attend(layout, q.contiguous(), pages, table, plan, scale=0.3)
    assert torch.equal(one, out.half())
    with pytest.raises(tqkv.TqkvError, match="q in this memory order is not valid"):
        paged.attend(layout, rows(2, DIM, 1).transpose(1, 2)[:, :HEADS], pages, table, plan)


def test_tokens_before_the_start_of_a_sequence_have_no_weight(gpu, layout):
    _, pages = new_pages(layout)
    table = torch.tensor([[4, 1, 2], [0, 3, 5]], dtype=torch.int32)
    lengths, starts = torch.tensor([150, 80], dtype=torch.int32), torch.tensor([70, 64], dtype=torch.int32)
    k, v = rows(230, KV_HEADS, 1), rows(230, KV_HEADS, 2)
    paged.store(layout, k, v, torch.cat([places(table[0], 150), places(table[1], 80)]), pages)
    q, plan = rows(2, HEADS, 3), paged.new_plan(layout, 2, DEVICE)
    paged.plan(layout, lengths, plan, max_tokens=192, starts=starts)
    out = paged.attend(layout, q, pages, table, plan)
    of_k, of_v = decoded("s4", k), decoded("s3", v)
    for row, part in ((0, slice(70, 150)), (1, slice(150 + 64, 230))):
        assert (out[row].double() - exact(q[row], of_k[part], of_v[part])).abs().max() < 2e-4
    with pytest.raises(tqkv.TqkvError, match="starts has 1 values, expected 2"):
        paged.plan(layout, lengths, plan, max_tokens=192, starts=starts[:1])


def test_several_query_tokens_of_a_sequence_each_see_the_tokens_up_to_themselves(gpu, layout):
    _, pages = new_pages(layout)
    table, k = torch.tensor([[4, 1]], dtype=torch.int32), rows(66, KV_HEADS, 1)
    paged.store(layout, k, k, places(table[0], 66), pages)
    q, plan = rows(3, HEADS, 3), paged.new_plan(layout, 3, DEVICE)
    paged.plan(layout, torch.tensor([66], dtype=torch.int32), plan, max_tokens=128, queries=3)
    out = paged.attend(layout, q, pages, table, plan)
    of_k, of_v = decoded("s4", k), decoded("s3", k)
    for row, tokens in enumerate((64, 65, 66)):
        assert (out[row].double() - exact(q[row], of_k[:tokens], of_v[:tokens])).abs().max() < 2e-4


def test_one_vector_that_is_not_finite_and_numbers_that_lie_harm_no_other_sequence(gpu, layout):
    held, pages = new_pages(layout)
    table = torch.tensor([[4], [1], [0]], dtype=torch.int32)
    k = rows(3, KV_HEADS, 1)
    k[1, 0, 3] = float("nan")
    refused = torch.zeros(1, dtype=torch.int32)
    at = table[:, 0].long() * 64
    paged.store(layout, k, k, at, pages, refused)
    assert refused.item() == 1
    q, plan = rows(3, HEADS, 3), paged.new_plan(layout, 3, DEVICE)
    paged.plan(layout, torch.ones(3, dtype=torch.int32), plan, max_tokens=64)
    out = paged.attend(layout, q, pages, table, plan)
    assert out.isfinite().all()
    before = held.clone()
    # The fake driver stops at any access outside of a tensor.
    paged.store(layout, k, k, torch.tensor([BLOCKS * 64, 1 << 40, -5]), pages, refused)
    assert torch.equal(held, before)
    wild = torch.tensor([[4], [-9], [1 << 30]], dtype=torch.int32)
    paged.plan(layout, torch.tensor([1, 1 << 30, -4], dtype=torch.int32), plan, max_tokens=64)
    got = paged.attend(layout, q, pages, wild, plan)
    assert torch.equal(got[0], out[0]) and not got[2].any()


def test_a_compiled_step_is_the_step(gpu, layout):
    lengths, table = torch.tensor([65, 3], dtype=torch.int32), torch.tensor([[4, 1], [2, 0]], dtype=torch.int32)
    k, v, q = rows(2, KV_HEADS, 1), rows(2, KV_HEADS, 2), rows(2, HEADS, 3)
    at = torch.tensor([1 * 64, 2 * 64 + 2])

    def step(k, v, q, at, pages, table, lengths, plan):
        paged.plan(layout, lengths, plan, max_tokens=128)
        paged.store(layout, k * 2, v, at, pages)
        out, lse = paged.attend_lse(layout, q, pages, table, plan)
        return paged.attend(layout, q, pages, table, plan) + out * lse[..., None]

    results = []
    for run in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        _, pages = new_pages(layout, spare=0)
        filled = rows(70, KV_HEADS, 5)
        paged.store(layout, filled, filled, torch.cat([places(table[0], 66), 2 * 64 + torch.arange(4)]), pages)
        plan = paged.new_plan(layout, 2, DEVICE)
        results.append((run(k, v, q, at, pages, table, lengths, plan), pages))
    (out, pages), (compiled, of_compiled) = results
    assert torch.equal(out, compiled) and torch.equal(pages, of_compiled)
    of = paged._text(layout)
    plan = paged.new_plan(layout, 2, DEVICE)
    paged.plan(layout, lengths, plan, max_tokens=128)
    for op, args in [
        (paged._plan, (lengths, None, plan, 1, 128, of)),
        (paged._plan, (lengths, torch.zeros_like(lengths), plan, 1, 128, of)),
        (paged._store, (k, v, at, pages, torch.zeros(1, dtype=torch.int32), of)),
        (paged._store, (k, v, at, pages, None, of)),
        (paged._attend, (q, pages, table, plan, of)),
        (paged._attend_to, (q, pages, table, plan, torch.empty_like(q), of, 0.2)),
        (paged._attend_lse, (q, pages, table, plan, of)),
    ]:
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.skipif(DEVICE != "cuda", reason="the fake driver holds no graph of PyTorch")
@pytest.mark.parametrize("kv", ["s4", "i8", "t4,t2"])
def test_a_graph_follows_lengths_tables_and_places_that_change_on_the_device(gpu, kv):
    layout, steps = paged.Layout(HEADS, KV_HEADS, DIM, kv), 130
    k, v, q = rows(2 * steps, KV_HEADS, 1), rows(2 * steps, KV_HEADS, 2), rows(2 * steps, HEADS, 3)
    pools = [new_pages(layout)[1] for _ in range(2)]
    table = torch.tensor([[4, 1, 3], [2, 0, 5]], dtype=torch.int32)
    lengths, at = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)
    now, plan = [x[:2].clone() for x in (k, v, q)], paged.new_plan(layout, 2, DEVICE)

    def step(pages):
        paged.plan(layout, lengths, plan, max_tokens=192)
        paged.store(layout, now[0], now[1], at, pages)
        return paged.attend(layout, now[2], pages, table, plan)

    step(pools[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(pools[1])
    for i in range(steps):
        # The second sequence begins 60 tokens later, so a part of a row is empty.
        lengths.copy_(torch.tensor([i + 1, max(i - 59, 0)]))
        at.copy_(torch.tensor([table[0, i // 64] * 64 + i % 64, table[1, (i - 60) // 64] * 64 + (i - 60) % 64 if i >= 60 else -1]))
        for into, x in zip(now, (k, v, q)):
            into.copy_(x[2 * i : 2 * i + 2])
        graph.replay()
        assert torch.equal(out, step(pools[0])), i
    names = (kv + "," + kv).split(",")
    of_k, of_v = decoded(names[0], k[0::2]), decoded(names[1], v[0::2])
    assert (out[0].double() - exact(q[2 * steps - 2], of_k, of_v)).abs().max() < 1e-5


def test_what_is_wrong_is_refused_in_one_line(gpu, layout, monkeypatch):
    _, pages = new_pages(layout)
    k, q, table = rows(2, KV_HEADS, 1), rows(2, HEADS, 3), torch.zeros(2, 1, dtype=torch.int32)
    plan, at = paged.new_plan(layout, 2, DEVICE), torch.tensor([0, 1])
    for call, reason in [
        (lambda: paged.store(layout, q, k, at, pages), "k of the shape [2, 4, 64] is not valid: expected [tokens, 2, 64]"),
        (lambda: paged.store(layout, k.double(), k, at, pages), "k of the type float64 is not valid: expected float32 or float16 or bfloat16"),
        (lambda: paged.store(layout, k, k, at.int(), pages), "places of the type int32 is not valid: expected int64"),
        (lambda: paged.store(layout, k, k, at[:1], pages), "keys has 256 values, expected 128"),
        (lambda: paged.store(layout, k, k, at, pages[:, :99]), "blocks of 99 bytes are not valid: expected at least"),
        (lambda: paged.attend(layout, q, pages, table[0], plan), "table of the shape [1] is not valid: expected [sequences, blocks]"),
        (lambda: paged.attend(layout, q, pages, table, plan[:5]), "the plan has 5 values, expected"),
        (lambda: paged.attend(layout, q, pages, table, plan, scale=float("nan")), "scale NaN is not valid: expected a finite number"),
        (lambda: paged.Layout(HEADS, KV_HEADS, DIM, block_tokens=16).block_bytes(), "blocks of 16 tokens are not valid: expected 64, 128"),
        (lambda: paged.Layout(HEADS, KV_HEADS, DIM, "s4 hot=4").block_bytes(), "hot"),
        (lambda: paged.new_plan(paged.Layout(HEADS, KV_HEADS, DIM, "s4 t9"), 1, DEVICE), "t9"),
        (lambda: paged.Layout(2.5, 1, 64), "num_heads 2.5 is not valid: expected a whole number from 0 on"),
        (lambda: paged.Layout(HEADS, KV_HEADS, 96).block_bytes(), "head dim 96 has no kernels; expected 64, 128, 256"),
    ]:
        with pytest.raises(tqkv.TqkvError) as refused:
            call()
        assert reason in str(refused.value) and "\n" not in str(refused.value)
    # Blocks in main memory have other bytes.
    monkeypatch.undo()
    with pytest.raises(tqkv.TqkvError, match="blocks that are 7728 bytes apart are not valid: expected a multiple of 64"):
        paged.store(layout, k, k, at, pages.cpu())


def test_a_layout_takes_the_bytes_of_its_blocks(layout):
    assert layout.block_bytes() == 64 * KV_HEADS * (DIM * 4 // 8 + 2 + DIM * 3 // 8 + 2)
    assert paged.Layout(32, 8, 128, "s4").block_bytes() == 64 * 8 * 132
