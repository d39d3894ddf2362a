"""Speed of LMCache's serde: bytes of bf16 per second, stored and loaded.

    python examples/lmcache_speed.py [--codecs s4,t4] [--repeats 9]

Needs the package lmcache. A chunk of 256 tokens has the shape of a model of 8 billion parameters, or that of SmolLM2-135M. A
process of its own measures each number of threads. With one thread the time is that of the processor, which other work on the
machine lengthens least. With two, it is that of the clock: two workers each have a chunk, as LMCache's serde processor runs them.
Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

SHAPES = {"8B": ((2, 32, 256, 1024), 128), "SmolLM2-135M": ((2, 30, 256, 192), 64)}


def memory(torch, shape, dtype, nbytes):
    from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj

    shape = torch.Size(shape)
    meta = MemoryObjMetadata(shape, dtype, 0, nbytes, 1, shapes=[shape], dtypes=[dtype])
    return TensorMemoryObj(torch.zeros(nbytes, dtype=torch.uint8), meta, None)


def measure(threads: int, codecs: list[str], repeats: int) -> list[list]:
    """Rows of shape, codec, and GB/s stored and loaded."""
    import torch

    import tqkv.lmcache
    from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
    from tqkv.payload import Format

    torch.set_num_threads(1)
    rows = []
    for name, (shape, head_dim) in SHAPES.items():
        torch.manual_seed(0)
        values = torch.randn(shape).bfloat16()
        chunks = [memory(torch, shape, torch.bfloat16, 2 * values.numel()) for _ in range(threads)]
        loaded = [memory(torch, shape, torch.bfloat16, 2 * values.numel()) for _ in range(threads)]
        for chunk in chunks:
            chunk.tensor.copy_(values)
        keys = [ObjectKey(bytes([i] * 8), "model", 0) for i in range(threads)]
        for codec in codecs:
            writer = tqkv.lmcache.TqkvSerializer(Format(codec), head_dim)
            reader = tqkv.lmcache.TqkvDeserializer(head_dim)
            size = writer.estimate_serialized_size(MemoryLayoutDesc([torch.Size(shape)], [torch.bfloat16]))
            stored = [memory(torch, (size,), torch.uint8, size) for _ in range(threads)]
            with ThreadPoolExecutor(threads) as pool:
                store = lambda: list(pool.map(writer.serialize, chunks, stored, keys))
                load = lambda: list(pool.map(reader.deserialize, stored, loaded, keys))
                clock = time.process_time if threads == 1 else time.perf_counter
                gigabytes = threads * 2 * values.numel() / 1e9
                rows.append([name, codec, *(gigabytes / least(work, clock, repeats) for work in (store, load))])
    return rows


def least(work, clock, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = clock()
        work()
        times.append(clock() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codecs", default="s4,t4,i8")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, help="measure here, and print JSON")
    arguments = parser.parse_args()
    codecs = arguments.codecs.split(",")
    if arguments.threads:
        return print(json.dumps(measure(arguments.threads, codecs, arguments.repeats)))
    found = []
    for threads in (1, 2):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--threads", str(threads), "--codecs", arguments.codecs, "--repeats", str(arguments.repeats)]
        output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        found.append(json.loads(output.splitlines()[-1]))
    print("| shape | codec | store, GB/s | load, GB/s | two threads: store | load |\n| --- | --- | --- | --- | --- | --- |")
    for (name, codec, store, load), (*_, stores, loads) in zip(*found):
        print(f"| {name} | {codec} | {store:.2f} | {load:.2f} | {stores:.2f} | {loads:.2f} |")


if __name__ == "__main__":
    main()
