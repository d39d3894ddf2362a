"""Tokens per second of a model with the shape of Llama 3.1 8B and random bf16 weights, over caches of several kinds.

A step is one CUDA graph: every layer writes a key and a value and attends over all tokens. PyTorch and the package tqkv, built with the
feature cuda, must be there. vLLM's kernels (bf16, fp8 and its own TurboQuant) are timed if they can be imported.

    python3 serve.py                    # all caches, batches of 1, 14 and 54 with 4k and 32k tokens, and as many of 32k as fit
    python3 serve.py --cache s4 cudnn --batch 8x8192
"""

import argparse
import gc
import importlib
import json
import time

import torch
from baselines import RUNS, times
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

LAYERS, HIDDEN, HEADS, KV_HEADS, DIM, INNER, WORDS = 32, 4096, 32, 8, 128, 14336, 128256
# Memory that a step needs besides weights and cache.
SPARE = 6e9
# Tokens of a block where vLLM's kernels take blocks.
BLOCK = 16


def new(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda")


def integers(values, dtype=torch.int32):
    return torch.as_tensor(values, dtype=dtype, device="cuda")


def repeated(pool, part):
    """Fills the rows of a pool with those of `part`, again and again."""
    for first in range(0, len(pool), len(part)):
        pool[first : first + len(part)] = part[: len(pool) - first]


class Cudnn:
    """bf16, contiguous, in PyTorch's cuDNN."""

    token_bytes = 2 * 2 * KV_HEADS * DIM

    def __init__(self, batch, tokens):
        self.held = [new(2, batch, KV_HEADS, tokens, DIM) for _ in range(LAYERS)]
        for held in self.held:
            held.normal_()

    def begin(self):
        pass

    def layer(self, layer, q, k, v):
        keys, values = self.held[layer]
        keys[:, :, -1], values[:, :, -1] = k, v
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q.unsqueeze(2), keys, values, enable_gqa=True).squeeze(2)


class Paged:
    """A cache in blocks: a table, and the slot of the newest token of each sequence."""

    def __init__(self, batch, tokens, block):
        blocks = -(-tokens // block)
        # The blocks of a sequence are apart, as in an engine that serves many.
        self.table = torch.arange(batch * blocks, dtype=torch.int32, device="cuda").reshape(blocks, batch).T.contiguous()
        self.slots = self.table[:, (tokens - 1) // block].long() * block + (tokens - 1) % block
        self.lengths = integers([tokens] * batch)
        self.blocks = batch * blocks

    def begin(self):
        pass


def ours(kv, exact=False):
    """Codes in the pages of an engine."""

    class Ours(Paged):
        def __init__(self, batch, tokens):
            super().__init__(batch, tokens, layout.block_tokens)
            self.plan = paged.new_plan(layout, batch, "cuda")
            few = new(min(self.blocks, 256), layout.block_bytes(), dtype=torch.uint8)
            rows = len(few) * layout.block_tokens
            k, v = new(2, rows, KV_HEADS, DIM).normal_()
            paged.store(layout, k, v, torch.arange(rows, device="cuda"), few)
            self.pages = [new(self.blocks, layout.block_bytes(), dtype=torch.uint8) for _ in range(LAYERS)]
            for pages in self.pages:
                repeated(pages, few)

        def begin(self):
            paged.plan(layout, self.lengths, self.plan, max_tokens=self.table.shape[1] * layout.block_tokens)

        def layer(self, layer, q, k, v):
            paged.store(layout, k, v, self.slots, self.pages[layer])
            return paged.attend(layout, q, self.pages[layer], self.table, self.plan)

    class Exact(Ours):
        """The first and the newest tokens of each sequence attend as they were computed, as in vLLM."""

        def __init__(self, batch, tokens):
            super().__init__(batch, tokens)
            window = Window.of(16, 16)
            self.units = Units(window, window.units * batch, batch, batch, layout.block_tokens, self.slots.device)
            self.rows = [Rows(window.units * batch, new(1, KV_HEADS, DIM)) for _ in range(LAYERS)]

        def begin(self):
            self.units.begin(self.slots, self.table, self.lengths, len(self.slots))
            seen, most = self.units.seen, self.table.shape[1] * layout.block_tokens
            paged.plan(layout, seen.ends, self.plan, max_tokens=most, starts=seen.starts)

        def layer(self, layer, q, k, v):
            rows, seen = self.rows[layer], self.units.seen
            paged.store_now(k, v, self.slots, self.pages[layer], None, text, rows.at(seen.kept))
            return paged.attend_now(q, self.pages[layer], self.table, self.plan, text, exact=rows.at(seen.places))

    from tqkv import paged
    from tqkv.vllm_exact import Rows, Units, Window

    layout = paged.Layout(HEADS, KV_HEADS, DIM, kv=kv)
    text = paged._text(layout)
    Ours.token_bytes = layout.block_bytes() / layout.block_tokens
    return Exact if exact else Ours


def vllm_rows(dtype):
    """Rows of vLLM in its Triton kernel: bf16, or fp8 with one scale."""

    class Rows(Paged):
        token_bytes = 2 * dtype.itemsize * KV_HEADS * DIM

        def __init__(self, batch, tokens):
            super().__init__(batch, tokens, BLOCK)
            few = new(2, min(self.blocks, 256), BLOCK, KV_HEADS, DIM).normal_().to(dtype)
            self.held = [new(2, self.blocks, BLOCK, KV_HEADS, DIM, dtype=dtype) for _ in range(LAYERS)]
            for held in self.held:
                for pool, part in zip(held, few):
                    repeated(pool.view(torch.uint8), part.view(torch.uint8))
            # As its back end: the segments of a sequence are parallel while there are few sequences.
            self.most, segments = 128 // KV_HEADS, 16
            self.parts = new(self.most, HEADS, segments, DIM, dtype=torch.float32)
            self.largest, self.sums = (new(self.most, HEADS, segments, dtype=torch.float32) for _ in range(2))
            self.starts, self.tokens = integers(range(batch + 1)), tokens
            self.scale = torch.ones(1, device="cuda")

        def layer(self, layer, q, k, v):
            for pool, rows in zip(self.held[layer], (k, v)):
                rows = rows.to(dtype).view(torch.uint8)
                pool.view(-1, KV_HEADS, DIM).view(torch.uint8).index_copy_(0, self.slots, rows)
            keys, values = self.held[layer]
            out = torch.empty_like(q)
            scales = (self.scale,) * 2 if dtype.itemsize == 1 else (None, None)
            of.unified_attention(
                q, keys, values, out, self.starts, 1, self.lengths, self.tokens, DIM**-0.5, True, (-1, -1), self.table, 0.0,
                None, *scales, self.most, 16, self.parts, self.largest, self.sums,
                kv_quant_mode=modes.FP8_PER_TENSOR if dtype.itemsize == 1 else modes.NONE,
            )  # fmt: skip
            return out

    of = importlib.import_module("vllm.v1.attention.ops.triton_unified_attention")
    modes = importlib.import_module("vllm.v1.kv_cache_interface").KVQuantMode
    return Rows


def vllm_turboquant(bits):
    """vLLM's own TurboQuant in its Triton kernels."""

    class Turbo(Paged):
        key_bytes, value_bytes = DIM * bits // 8 + 2, DIM * bits // 8 + 4
        token_bytes = KV_HEADS * (key_bytes + value_bytes)

        def __init__(self, batch, tokens):
            super().__init__(batch, tokens, BLOCK)
            self.rotation = torch.linalg.qr(torch.randn(DIM, DIM, device="cuda"))[0].contiguous()
            level = importlib.import_module("vllm.model_executor.layers.quantization.turboquant.centroids")
            centroids, boundaries = level.solve_lloyd_max(DIM, bits)
            self.centroids, self.boundaries = centroids.cuda(), boundaries.cuda()
            few = new(min(self.blocks, 256), BLOCK, KV_HEADS, self.key_bytes + self.value_bytes, dtype=torch.uint8)
            k, v = new(2, len(few) * BLOCK, KV_HEADS, DIM).normal_()
            self.store(k, v, few, torch.arange(len(k), device="cuda"))
            self.pages = [new(self.blocks, *few.shape[1:], dtype=torch.uint8) for _ in range(LAYERS)]
            for pages in self.pages:
                repeated(pages, few)

        def store(self, k, v, pages, slots):
            storing.triton_turboquant_store(
                k, v, pages, slots, self.rotation, self.boundaries, bits, self.key_bytes, bits
            )  # fmt: skip

        def layer(self, layer, q, k, v):
            self.store(k, v, self.pages[layer], self.slots)
            return decoding.triton_turboquant_decode_attention(
                q, self.pages[layer], self.table, self.lengths, self.rotation, self.centroids, DIM**-0.5, bits, self.key_bytes, bits,
                norm_correction=True, PiT=self.rotation,
            )  # fmt: skip

    storing = importlib.import_module("vllm.v1.attention.ops.triton_turboquant_store")
    decoding = importlib.import_module("vllm.v1.attention.ops.triton_turboquant_decode")
    return Turbo


class Nothing:
    """No cache and no attention: what the weights alone take."""

    token_bytes = 0

    def __init__(self, batch, tokens):
        pass

    def begin(self):
        pass

    def layer(self, layer, q, k, v):
        return q


CACHES = {
    "none": lambda: Nothing,
    "cudnn": lambda: Cudnn,
    "vllm-bf16": lambda: vllm_rows(torch.bfloat16),
    "vllm-fp8": lambda: vllm_rows(torch.float8_e4m3fn),
    "vllm-tq4": lambda: vllm_turboquant(4),
    "i8": lambda: ours("i8"),
    "s4": lambda: ours("s4"),
    "s4-exact": lambda: ours("s4", exact=True),
    "t4": lambda: ours("t4"),
    "s3": lambda: ours("s3"),
    "s2": lambda: ours("s2"),
}


class Model:
    def __init__(self):
        weight = lambda *shape: new(*shape).normal_(std=0.02)
        self.words, self.head = weight(WORDS, HIDDEN), weight(WORDS, HIDDEN)
        self.layers = [
            (weight((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), weight(HIDDEN, HEADS * DIM), weight(2 * INNER, HIDDEN), weight(HIDDEN, INNER))
            for _ in range(LAYERS)
        ]
        self.norm = new(HIDDEN).fill_(1)

    def step(self, cache, ids, cos, sin):
        cache.begin()
        x, batch = self.words[ids], len(ids)
        for layer, (of_qkv, of_out, of_inner, of_x) in enumerate(self.layers):
            qkv = linear(rms_norm(x, (HIDDEN,), self.norm), of_qkv).view(batch, -1, DIM)
            turned = qkv[:, : HEADS + KV_HEADS]
            low, high = turned.chunk(2, -1)
            turned = turned * cos + torch.cat([-high, low], -1) * sin
            q, k = turned[:, :HEADS].contiguous(), turned[:, HEADS:].contiguous()
            seen = cache.layer(layer, q, k, qkv[:, HEADS + KV_HEADS :].contiguous())
            x = x + linear(seen.reshape(batch, -1), of_out)
            gate, up = linear(rms_norm(x, (HIDDEN,), self.norm), of_inner).chunk(2, -1)
            x = x + linear(silu(gate) * up, of_x)
        return linear(rms_norm(x, (HIDDEN,), self.norm), self.head)


def timed(model, cache, batch, tokens):
    """Median seconds of a step."""
    ids = torch.zeros(batch, dtype=torch.long, device="cuda")
    angles = tokens * 500000.0 ** (-torch.arange(0, DIM, 2, device="cuda") / DIM)
    cos, sin = (torch.cat([x, x]).to(torch.bfloat16) for x in (angles.cos(), angles.sin()))
    step = lambda: model.step(cache, ids, cos, sin)
    assert step().isfinite().all(), "a logit is not finite"
    return times(step)[RUNS // 2]


def measure(model, name, batch, tokens):
    row = {"cache": name, "batch": batch, "tokens": tokens}
    began = time.monotonic()
    # A kernel of another package may fail in any way. The others are still timed.
    try:
        kind = CACHES[name]()
        free = torch.cuda.mem_get_info()[0] - SPARE
        each = LAYERS * kind.token_bytes * tokens
        batch = batch or max(1, int(free // max(each, 1)))
        row |= {"batch": batch, "cache_gb": round(batch * each / 1e9, 2)}
        if batch * each > free:
            return row | {"error": "does not fit"}
        seconds = timed(model, kind(batch, tokens), batch, tokens)
        row |= {"ms": round(1e3 * seconds, 3), "tokens_per_second": round(batch / seconds, 1)}
    except Exception as error:
        row |= {"error": (str(error) or type(error).__name__).splitlines()[0][:200]}
    gc.collect()
    torch.cuda.empty_cache()
    return row | {"took": round(time.monotonic() - began, 1)}


def shape(text):
    batch, tokens = text.split("x")
    return (0 if batch == "full" else int(batch)), int(tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", nargs="*", default=list(CACHES), choices=list(CACHES))
    parser.add_argument("--batch", nargs="*", type=shape, help="SEQUENCESxTOKENS; full: as many as fit",
                        default=[(1, 4096), (1, 32768), (14, 4096), (14, 32768), (54, 4096), (54, 32768), (0, 32768)])  # fmt: skip
    options = parser.parse_args()
    torch.manual_seed(1)
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name()}), flush=True)
    model = Model()
    for name in options.cache:
        for batch, tokens in options.batch:
            if batch or name != "none":
                print(json.dumps(measure(model, name, batch, tokens)), flush=True)


with torch.inference_mode():
    main()
