"""Speed and memory of generation in Transformers on a GPU: `TqkvCache`, whose pages are there, and the library's own cache.

    python device_speed.py [--layers 16] [--head-dim 128] [--kv s4] [--tokens 4096 32768] [--batch 1 8]

The model is random, in bf16, with 32 query heads and 8 KV heads a layer. No prompt runs: caches are filled with random keys and values."""

import argparse
import time

import torch
from tqkv.transformers import TqkvCache
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=16)
parser.add_argument("--head-dim", type=int, default=128)
parser.add_argument("--kv", default="s4")
parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 32768])
parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
parser.add_argument("--steps", type=int, default=64)
parser.add_argument("--device", default="cuda")
args = parser.parse_args()

config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=args.layers, num_attention_heads=32, num_key_value_heads=8,
    head_dim=args.head_dim, max_position_embeddings=1 << 17,
)
torch.manual_seed(1)
with torch.device(args.device):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None


def held(cache):
    if isinstance(cache, TqkvCache):
        return cache.stats()["bytes"]
    return sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))


@torch.no_grad()
def measure(cache, attention, batch, tokens):
    """Milliseconds of a step, bytes held, and the logits of the first step."""
    # For any attention but its own, a layer takes tokens as soon as they come.
    model.set_attn_implementation("sdpa")
    torch.manual_seed(2)
    for layer in range(args.layers):
        k, v = (torch.randn(batch, 8, tokens, args.head_dim, dtype=torch.bfloat16, device=args.device) for _ in range(2))
        cache.update(k, v, layer)
    model.set_attn_implementation(attention)
    ids = torch.arange(batch, device=args.device)[:, None] + 5
    first = None
    # The first steps load kernels; a group of 64 tokens leaves the window within the others.
    for step in range(4 + args.steps):
        if step == 4:
            wait()
            begin = time.perf_counter()
        logits = model(ids, past_key_values=cache).logits[:, -1]
        first = logits.float() if first is None else first
        ids = logits.argmax(-1, keepdim=True)
    wait()
    return (time.perf_counter() - begin) / args.steps * 1e3, held(cache), first


print(f"{args.layers} layers, 32 heads of {args.head_dim}, 8 KV heads, {args.kv}, {torch.__version__}")
print(f"{'tokens':>7} {'batch':>5} {'cache':>12} {'ms/step':>8} {'tokens/s':>9} {'MiB':>8}  logits")
for tokens in args.tokens:
    for batch in args.batch:
        want = None
        for name in ("DynamicCache", "TqkvCache"):
            cache = DynamicCache(config=config) if name == "DynamicCache" else TqkvCache(config, kv=args.kv)
            ms, size, first = measure(cache, "sdpa" if name == "DynamicCache" else "tqkv", batch, tokens)
            want = first if want is None else want
            near = ((first - want).norm() / want.norm()).item()
            print(f"{tokens:7} {batch:5} {name:>12} {ms:8.2f} {batch / ms * 1e3:9.0f} {size / 2**20:8.0f}  {near:.3f}", flush=True)
            del cache
