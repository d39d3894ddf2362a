"""Times attention of one new token per sequence over f16 rows, at the shapes of `tqkv gpu-check`: tuned kernels for comparison.

PyTorch must be there. FlashInfer, flash-attn and vLLM are timed if they can be imported, and named if they cannot.
"""

import importlib
import json

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = [
    (64, 32768, 8, 1, 128),
    (64, 32768, 8, 4, 128),
    (64, 32768, 8, 8, 128),
    (64, 32768, 8, 2, 128),
    (64, 32768, 8, 6, 128),
    (64, 32768, 8, 7, 128),
    (16, 8192, 8, 4, 128),
    (64, 32768, 8, 8, 256),
    (64, 32768, 8, 1, 64),
    (64, 32768, 8, 1, 256),
    (1, 4096, 8, 4, 128),
    (1, 32768, 8, 4, 128),
    (1, 131072, 8, 4, 128),
]
RUNS = 50
# Tokens of a page where a kernel takes pages. Every number of tokens above is a multiple.
PAGE = 16


def times(run):
    """Sorted seconds of RUNS runs, each between two events. `run` is captured in a graph, so the time of Python is not counted."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) / 1e3 for start, end in zip(events, events[1:]))


def torch_backend(backend):
    """Attention of PyTorch by one of its kernels, over rows `[sequences, num_kv_heads, tokens, head_dim]`."""

    def prepare(shape, sequences):
        group = shape[3]

        def attend(query, key, value):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(query.unsqueeze(2), key, value, enable_gqa=group > 1).squeeze(2)

        return attend

    return prepare


def flash_attn(shape, sequences):
    """flash-attn over rows `[sequences, tokens, num_kv_heads, head_dim]`."""
    from flash_attn import flash_attn_with_kvcache

    return lambda query, key, value: flash_attn_with_kvcache(query.unsqueeze(1), key, value).squeeze(1)


def pages(rows):
    """The rows of a cache as pages `[pages, PAGE, num_kv_heads, head_dim]`."""
    return rows.reshape(-1, PAGE, *rows.shape[2:])


def vllm(shape, sequences):
    """The flash-attn that vLLM brings, over pages."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    tokens = shape[1]
    integers = dict(dtype=torch.int32, device="cuda")
    starts = torch.arange(sequences + 1, **integers)
    lengths = torch.full((sequences,), tokens, **integers)
    table = torch.arange(sequences * tokens // PAGE, **integers).reshape(sequences, -1)
    return lambda query, key, value: flash_attn_varlen_func(
        query, pages(key), pages(value), 1, starts, tokens, seqused_k=lengths, block_table=table
    )


def flashinfer(shape, sequences):
    """FlashInfer over pages."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    _, tokens, num_kv_heads, group, head_dim = shape
    integers = dict(dtype=torch.int32, device="cuda")
    count = tokens // PAGE
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=group > 1
    )
    wrapper.plan(
        torch.arange(sequences + 1, **integers) * count,
        torch.arange(sequences * count, **integers),
        torch.full((sequences,), PAGE, **integers),
        num_kv_heads * group,
        num_kv_heads,
        head_dim,
        PAGE,
        q_data_type=torch.float16,
        kv_data_type=torch.float16,
    )
    return lambda query, key, value: wrapper.run(query, (pages(key), pages(value)))


TORCH = {
    "flash": torch_backend(SDPBackend.FLASH_ATTENTION),
    "cudnn": torch_backend(SDPBackend.CUDNN_ATTENTION),
    "efficient": torch_backend(SDPBackend.EFFICIENT_ATTENTION),
}
PACKAGES = {"flash_attn": flash_attn, "vllm": vllm, "flashinfer": flashinfer}


def measure(shape, names):
    """A row for each backend."""
    sequences, tokens, num_kv_heads, group, head_dim = shape
    # Sequences are halved until both fit half of the memory, as in `tqkv gpu-check`.
    free, _ = torch.cuda.mem_get_info()
    while sequences > 1 and sequences * tokens * num_kv_heads * head_dim * 4 > free / 2:
        sequences //= 2
    read = sequences * tokens * num_kv_heads * head_dim * 2 * 2
    # As many layers in turn as have four times the bytes of the second-level cache, as in `tqkv gpu-check`.
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    layers = min(128, max(1, -(-4 * cache // read)))
    rows = lambda *shape: torch.randn(sequences, *shape, head_dim, device="cuda", dtype=torch.float16)
    query = rows(num_kv_heads * group)
    # PyTorch takes all tokens of a head together, the others all heads of a token. Both read the same bytes.
    pairs = [(rows(num_kv_heads, tokens), rows(num_kv_heads, tokens)) for _ in range(layers)]
    by_token = [tuple(rows.view(sequences, tokens, num_kv_heads, head_dim) for rows in pair) for pair in pairs]
    exact = torch_backend(SDPBackend.MATH)(shape, sequences)
    for name in names:
        prepare, layout = (TORCH[name], pairs) if name in TORCH else (PACKAGES[name], by_token)
        row = {
            "backend": name,
            "sequences": sequences,
            "tokens": tokens,
            "num_kv_heads": num_kv_heads,
            "heads_per_kv_head": group,
            "head_dim": head_dim,
            "layers": layers,
        }
        # A kernel of another package may fail in any way. The others are still timed.
        try:
            attend = prepare(shape, sequences)
            few = [rows[:1] if name in TORCH else rows[:1].transpose(1, 2) for rows in layout[0]]
            difference = attend(query, *layout[0])[:1] - exact(query[:1], *few)

            def run():
                for pair in layout:
                    attend(query, *pair)

            all_times = [seconds / layers for seconds in times(run)]
            median = all_times[RUNS // 2]
            row |= {
                "seconds": median,
                "p90": all_times[RUNS * 9 // 10],
                "bytes_per_second": read / median,
                "largest_difference": difference.abs().max().item(),
            }
        except Exception as error:
            row |= {"error": (str(error) or type(error).__name__).splitlines()[0]}
        yield row


def main():
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    names = list(TORCH)
    for name in PACKAGES:
        try:
            about[name] = importlib.import_module(name).__version__
            names.append(name)
        except Exception as error:
            about[name] = f"cannot be imported: {error}"
    print(json.dumps(about), flush=True)
    for shape in SHAPES:
        for row in measure(shape, names):
            print(json.dumps(row), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
