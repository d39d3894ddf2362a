"""`GpuCache` with tensors of PyTorch on a real GPU. Without one, these tests are skipped, or fail with `TQKV_REQUIRE_GPU=1`.

The package needs the feature `cuda`, and PyTorch must have been built for CUDA.
"""

import copy
import os

import numpy as np
import pytest
import tqkv
from tqkv import _native

LAYERS, HEADS, KV_HEADS, DIM = 2, 8, 2, 128


@pytest.fixture(scope="module")
def torch():
    # Both may be missing on a machine without a GPU.
    required = os.environ.get("TQKV_REQUIRE_GPU") == "1"
    torch = __import__("torch") if required else pytest.importorskip("torch")
    is_there = torch.cuda.is_available() and hasattr(_native, "GpuCache")
    assert is_there or not required, "TQKV_REQUIRE_GPU is set, but there is no GPU, or no GpuCache"
    if not is_there:
        pytest.skip("no GPU, or built without the feature cuda")
    torch.manual_seed(1)
    return torch


def new_cache(torch, kv="s4", **options):
    stream = torch.cuda.current_stream().cuda_stream
    given = dict(num_sequences=3, max_tokens=256, stream=stream)
    return tqkv.GpuCache(LAYERS, HEADS, KV_HEADS, DIM, kv, **{**given, **options})


def decoded(codec, rows):
    """What the codec of the CPU makes of rows `[tokens, num_kv_heads, head_dim]`, as a tensor there."""
    codec = tqkv.Codec(codec, DIM)
    return codec.decode(codec.encode(rows.float().cpu().numpy()))


def exact(torch, q, k, v):
    """Attention of one query `[num_heads, head_dim]` in f64 over rows `[tokens, num_kv_heads, head_dim]`."""
    q = q.double().cpu().reshape(KV_HEADS, HEADS // KV_HEADS, DIM)
    k, v = (torch.from_numpy(np.ascontiguousarray(rows)).double().transpose(0, 1) for rows in (k, v))
    weights = torch.softmax(q @ k.transpose(1, 2) / DIM**0.5, dim=-1)
    return (weights @ v).reshape(HEADS, DIM)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-4), ("float16", 2e-3), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("kv", ["s4", "i8", "s4,t3", "t2"])
def test_attention_is_that_of_the_decoded_codes(torch, kv, dtype, tolerance):
    dtype = getattr(torch, dtype)
    rows = lambda *shape: torch.randn(*shape, DIM, device="cuda", dtype=dtype)
    cache = new_cache(torch, kv, sinks=0, hot=0)
    keys, values, queries = rows(130, KV_HEADS), rows(130, KV_HEADS), rows(2, HEADS)
    # 130 tokens of sequence 2 fill two pages and begin a third. Sequence 0 has 7.
    for layer in range(LAYERS):
        cache.append(layer, [2] * 130, keys, values)
        cache.append(layer, [0] * 7, keys[:7], values[:7])
    out = torch.empty_like(queries)
    cache.attend(1, [2, 0], queries, out)
    names = (kv + "," + kv).split(",")
    k, v = decoded(names[0], keys), decoded(names[1], values)
    for row, tokens in enumerate([130, 7]):
        wanted = exact(torch, queries[row], k[:tokens], v[:tokens])
        assert (out[row].double().cpu() - wanted).abs().max() < tolerance
    # Codes of the GPU are those of the CPU.
    back = torch.empty(130, KV_HEADS, DIM, device="cuda")
    for side, wanted in ((cache.keys, k), (cache.values, v)):
        side(0, 2, back)
        assert np.array_equal(back.cpu().numpy(), wanted)


def test_a_step_in_a_graph_of_pytorch_is_the_step_outside_it(torch):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        caches = [new_cache(torch, num_sequences=2) for _ in range(2)]
        k = torch.empty(2, KV_HEADS, DIM, device="cuda", dtype=torch.float16)
        v, q = torch.empty_like(k), torch.empty(2, HEADS, DIM, device="cuda", dtype=torch.float16)
        outs = [torch.zeros(LAYERS, 2, HEADS, DIM, device="cuda", dtype=torch.float16) for _ in range(2)]

        def fill():
            for tensor in (k, v, q):
                tensor.normal_()

        def layers(cache, out):
            for layer in range(LAYERS):
                cache.append_step(layer, k, v)
                cache.attend_step(layer, q, out[layer])

        for cache in caches:
            cache.reserve(2)
        graph = torch.cuda.CUDAGraph()
        for step in range(140):
            fill()
            for cache in caches:
                cache.begin_step([0, 1])
            layers(caches[0], outs[0])
            if step == 0:
                # A capture runs nothing.
                with torch.cuda.graph(graph, stream=stream):
                    layers(caches[1], outs[1])
            graph.replay()
            for cache in caches:
                cache.end_step()
            assert torch.equal(outs[0], outs[1]), step
            assert outs[1].float().abs().max() > 0.1
        assert [cache.length(1) for cache in caches] == [140, 140]


def test_what_is_wrong_is_refused_and_nothing_is_lost(torch):
    cache = new_cache(torch)
    good = torch.randn(1, KV_HEADS, DIM, device="cuda")
    bad = good.clone()
    bad[0, 1, 5] = float("nan")
    for layer in range(LAYERS):
        cache.append(layer, [1], good, good)
    with pytest.raises(tqkv.TqkvError, match="key of layer 0, token 0, KV head 1 is not finite"):
        cache.append(0, [1], bad, good)
    with pytest.raises(tqkv.TqkvError, match="in main memory is not valid: expected a tensor on CUDA device 0"):
        cache.append(0, [1], good.cpu(), good)
    with pytest.raises(tqkv.TqkvError, match="in this memory order is not valid: expected C order"):
        cache.append(0, [1], torch.randn(1, DIM, KV_HEADS, device="cuda").transpose(1, 2), good)
    assert cache.length(1) == 1
    query, out = torch.randn(1, HEADS, DIM, device="cuda"), torch.empty(1, HEADS, DIM, device="cuda")
    query[0, 3, 0] = float("inf")
    cache.attend(0, [1], query, out)
    assert out[0, 3].isnan().all() and out[0, 0].isfinite().all()


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_a_model_of_transformers_on_the_gpu_predicts_what_it_does_in_main_memory(torch, implementation):
    pytest.importorskip("transformers")
    from test_device import llama, logits, prompt
    from tqkv.transformers import TqkvCache

    model, ids = llama(), prompt(2, 100)
    there = copy.deepcopy(model).cuda()
    cache, expected = TqkvCache(model.config, kv="t4,t3", hot=16), TqkvCache(model.config, kv="t4,t3", hot=16)
    # Codes may differ where a number is just at a boundary, because products on the GPU round otherwise.
    for first, end in ((0, 60), (60, 98), (98, 99), (99, 100)):
        want = logits(model, expected, ids[:, first:end], implementation)
        got = logits(there, cache, ids[:, first:end].cuda(), implementation)
        assert got.is_cuda
        assert (got.cpu() - want).norm() < 0.02 * want.norm()
    assert cache.stats()["bytes"] == expected.stats()["bytes"]
    codec, x = tqkv.Codec("t3", 64), torch.randn(5, 64)
    assert torch.equal(codec.encode(x.cuda()).cpu(), codec.encode(x))
