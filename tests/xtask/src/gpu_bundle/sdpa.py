"""Times attention of one new token per sequence over f16 rows in PyTorch, at the shapes of `tqkv gpu-check`: tuned kernels for comparison."""

import json

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = [
    (64, 32768, 8, 1, 128),
    (64, 32768, 8, 4, 128),
    (64, 32768, 8, 8, 128),
    (64, 32768, 8, 1, 64),
    (64, 32768, 8, 1, 256),
    (1, 4096, 8, 4, 128),
    (1, 32768, 8, 4, 128),
    (1, 131072, 8, 4, 128),
]
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
RUNS = 50


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


def measure(shape, backend):
    sequences, tokens, num_kv_heads, group, head_dim = shape
    # Sequences are halved until both fit half of the memory, as in `tqkv gpu-check`.
    free, _ = torch.cuda.mem_get_info()
    while sequences > 1 and sequences * tokens * num_kv_heads * head_dim * 4 > free / 2:
        sequences //= 2
    read = sequences * tokens * num_kv_heads * head_dim * 2 * 2
    # As many layers in turn as have four times the bytes of the second-level cache, as in `tqkv gpu-check`.
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    layers = min(128, max(1, -(-4 * cache // read)))
    rows = lambda heads, length: torch.randn(sequences, heads, length, head_dim, device="cuda", dtype=torch.float16)
    query = rows(num_kv_heads * group, 1)
    pairs = [(rows(num_kv_heads, tokens), rows(num_kv_heads, tokens)) for _ in range(layers)]
    row = {
        "backend": backend.name,
        "sequences": sequences,
        "tokens": tokens,
        "num_kv_heads": num_kv_heads,
        "heads_per_kv_head": group,
        "head_dim": head_dim,
        "layers": layers,
    }

    def run():
        for key, value in pairs:
            scaled_dot_product_attention(query, key, value, enable_gqa=group > 1)

    try:
        with sdpa_kernel(backend):
            all_times = [seconds / layers for seconds in times(run)]
    except RuntimeError as error:
        return row | {"error": str(error).splitlines()[0]}
    median = all_times[RUNS // 2]
    return row | {"seconds": median, "p90": all_times[RUNS * 9 // 10], "bytes_per_second": read / median}


def main():
    print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name()}), flush=True)
    for shape in SHAPES:
        for backend in BACKENDS:
            print(json.dumps(measure(shape, backend)), flush=True)
            torch.cuda.empty_cache()


main()
