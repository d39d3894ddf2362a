"""Launches of a decode step of a layer in vLLM, counted: kernels by the fake driver, and PyTorch's operators that are not views. What they give
is compared with attention in f64, so that none of them is missing."""

import ctypes
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed")

from test_paged import DEVICE, PATH, decoded
from test_transformers_device import Counts, fake
from torch.utils._python_dispatch import TorchDispatchMode

if not PATH or DEVICE == "cuda":
    pytest.skip("the fake driver counts launches", allow_module_level=True)

from tqkv import vllm_attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 64, 64
SCALE = 0.2
"""Not the root of the head dim."""


NONE = ("detach", "empty", "empty_like", "new_empty", "_unsafe_view", "scalar_tensor")
"""Operators without a launch."""


class Operators(TorchDispatchMode):
    """Names of PyTorch's operators that launch something on a GPU."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        if not (func.is_view or func.namespace == "tqkv" or name in NONE):
            self.names.append(name)
        return func(*args, **kwargs or {})


@pytest.fixture
def gpu(monkeypatch):
    return fake(monkeypatch, lambda tensor: tensor)


def launched(gpu, call, *given):
    """What a call gives, and its launches: of kernels, and the names of operators."""
    before, after = Counts(), Counts()
    gpu.driver.tqkv_fake_counts(ctypes.byref(before))
    with Operators() as operators:
        out = call(*given)
    gpu.driver.tqkv_fake_counts(ctypes.byref(after))
    return out, after.launches - before.launches, operators.names


class Layer(AttentionLayerBase):
    def __init__(self, impl):
        self.impl = impl

    def get_attn_backend(self):
        return vllm_attention.TqkvBackend

    def get_kv_cache_spec(self, config):
        return None


class Engine:
    """A layer and its builder, in blocks of requests that were given in order."""

    def __init__(self, monkeypatch, words, dtype, sinks, requests):
        monkeypatch.setenv("TQKV_VLLM", words)
        monkeypatch.setattr(vllm_attention.current_platform, "device_type", "cuda", raising=False)
        config = SimpleNamespace(kv_transfer_config=None, speculative_config=None)
        config.model_config = SimpleNamespace(max_model_len=4 * BLOCK, dtype=dtype, get_num_layers=lambda parallel: 1)
        config.cache_config = SimpleNamespace(kv_cache_memory_bytes=1 << 30)
        config.scheduler_config = SimpleNamespace(max_num_seqs=requests, max_num_batched_tokens=512)
        config.parallel_config = SimpleNamespace(use_ubatching=False, decode_context_parallel_size=1)
        monkeypatch.setattr(vllm_attention, "get_current_vllm_config", lambda: config)
        monkeypatch.setattr(vllm_attention.fa_utils, "is_flash_attn_varlen_func_available", lambda: False)
        self.impl = vllm_attention.TqkvImpl(HEADS, DIM, SCALE, KV_HEADS, sinks=sinks)
        config.compilation_config = SimpleNamespace(cudagraph_capture_sizes=None, static_forward_context={"layer": Layer(self.impl)})
        self.builder = vllm_attention.TqkvBuilder(None, ["layer"], config, torch.device("cpu"))
        self.table = torch.arange(4 * requests, dtype=torch.int32).view(requests, 4)
        self.cache = torch.zeros(4 * requests, self.impl.layout.block_bytes("cuda"), dtype=torch.uint8)
        self.rows = [torch.zeros(requests, 0, 0)] * 3
        self.dtype, self.lengths = dtype, torch.zeros(requests, dtype=torch.int32)

    def metadata(self, tokens):
        """Every request goes on by so many tokens."""
        before, self.lengths = self.lengths, self.lengths + tokens
        at = before[:, None] + torch.arange(tokens)
        starts = torch.arange(len(before) + 1, dtype=torch.int32) * tokens
        step = SimpleNamespace(causal=True, block_table_tensor=self.table, seq_lens=self.lengths, query_start_loc=starts)
        step.slot_mapping = (self.table.gather(1, at // BLOCK).long() * BLOCK + at % BLOCK).flatten()
        step.query_start_loc_cpu, step.seq_lens_cpu_upper_bound = starts, self.lengths
        step.num_reqs, step.num_actual_tokens, step.max_query_len = len(before), len(before) * tokens, tokens
        return step

    def forward(self, q, k, v, built):
        """As vLLM's layer calls it."""
        out = torch.empty(q.shape, dtype=q.dtype)
        return self.impl.forward(None, q, k, v, self.cache, built, out)


def drawn(tokens, seed, dtype):
    """Queries, keys and values of tokens: parts of one tensor, as a product of matrices gives them."""
    rows = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)
    parts = rows.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], 1)
    return [part.unflatten(1, (-1, DIM)) for part in parts]


def attended(q, k, v, codes, sinks):
    """Attention in f64 of a query, `[heads, dim]`, to keys and values `[tokens, num_kv_heads, dim]`, of which those of `codes` are codes."""
    keys, values = (x.double() for x in (k, v))
    if len(codes):
        keys[codes], values[codes] = decoded("s4", k[codes]).double(), decoded("s3", v[codes]).double()
    keys, values = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values))
    logits = torch.einsum("hd,thd->ht", q.double(), keys) * SCALE
    if sinks is not None:
        logits = torch.cat([logits, sinks.double()[:, None]], 1)
    return torch.einsum("ht,thd->hd", logits.softmax(-1)[:, : len(keys)], values)


CASES = [
    ("s4,s3", torch.bfloat16, None, 4, 5),
    ("s4,s3", torch.float16, [-1.0, 0.5, 2.0, 6.0], 4, 5),
    ("s4,s3 hot=0 sinks=0", torch.float32, None, 4, 1),
    ("s4,s3 hot=0 sinks=0", torch.float32, [-1.0, 0.5, 2.0, 6.0], 4, 1),
]


@pytest.mark.parametrize(("words", "dtype", "sinks", "most", "of_step"), CASES)
def test_a_decode_step_of_a_layer_takes_few_launches(gpu, monkeypatch, words, dtype, sinks, most, of_step):
    sinks, prompts, requests = None if sinks is None else torch.tensor(sinks, dtype=dtype), 75, 3
    engine = Engine(monkeypatch, words, dtype, sinks, requests)
    held = []
    for seed, tokens in enumerate([prompts, 1, 1]):
        q, k, v = drawn(requests * tokens, seed, dtype)
        step = engine.metadata(tokens)
        built, of_begin, names_of_begin = launched(gpu, engine.builder.build, 0, step)
        out, kernels, names = launched(gpu, engine.forward, q, k, v, built)
        held.append([x.unflatten(0, (requests, tokens)) for x in (k, v)])
    k, v = (torch.cat(parts, 1) for parts in zip(*held))
    length = prompts + 2
    is_exact = "hot=0" not in words
    codes = range(16, (length - 1) // 16 * 16 - 16) if is_exact else range(length)
    near = {torch.float32: 2e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for request in range(requests):
        want = attended(q[request], k[request], v[request], codes, sinks)
        assert (out[request].double() - want).abs().max() < near, request
    assert kernels + len(names) == most, (kernels, names)
    assert of_begin + len(names_of_begin) == of_step, (of_begin, names_of_begin)
