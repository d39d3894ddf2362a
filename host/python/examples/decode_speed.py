"""Decoding after a long context in Transformers: speed and memory, with caches of the library and with TqkvCache.

    python examples/decode_speed.py --model MODEL --text FILE

MODEL is a folder of Hugging Face Transformers, or a GGUF file (needs the package gguf). Needs Linux and the packages transformers,
optimum-quanto and hqq. Keys and values of the first tokens of the text are computed once. Each cache runs in its own process, which
loads them and predicts the next tokens of the text one by one. Prints a table in Markdown:

* bytes that the cache holds
* peak memory of the process while it decodes, above its memory with the model alone
* tokens per second (median of single tokens): of processor time with one thread, which other programs change little, else of time
* seconds of processor time to load the context
* divergence of the predictions from those with the exact cache and weights
* peak memory of the process while it decodes, weights included

`--weights t4` adds rows for weights in codes (`tqkv.weights`), which also compute the context.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CACHES = {
    "DynamicCache": ("sdpa", None),
    "QuantizedCache, quanto, 4 bits": ("sdpa", dict(backend="quanto", nbits=4)),
    "QuantizedCache, hqq, 4 bits": ("sdpa", dict(backend="hqq", nbits=4, axis_key=1, axis_value=1)),
    "TqkvCache s4, decoded": ("sdpa", "s4"),
    "TqkvCache t4,t3, decoded": ("sdpa", "t4,t3"),
    "TqkvCache s4, on codes": ("tqkv", "s4"),
    "TqkvCache t4,t3, on codes": ("tqkv", "t4,t3"),
}

WITH_WEIGHTS = ("DynamicCache", "TqkvCache s4, on codes")


def load(arguments):
    """The model, and the tokens of the text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(arguments.model)
    where = (str(path.parent), {"gguf_file": path.name}) if path.is_file() else (str(path), {})
    tokenizer = AutoTokenizer.from_pretrained(where[0], **where[1])
    dtype = getattr(torch, arguments.dtype)
    model = AutoModelForCausalLM.from_pretrained(where[0], dtype=dtype, attn_implementation="sdpa", **where[1]).eval()
    if arguments.codec:
        import tqkv.weights

        tqkv.weights.encode(model, arguments.codec)
    ids = tokenizer(Path(arguments.text).read_text(encoding="utf-8")[:400_000])["input_ids"]
    needed = arguments.context + arguments.tokens
    assert len(ids) >= needed, f"the text has {len(ids)} tokens, {needed} are needed"
    return model, torch.tensor([ids[:needed]])


def make(config, settings):
    from transformers import DynamicCache, QuantizedCache

    if settings is None:
        return DynamicCache(config=config)
    if isinstance(settings, dict):
        return QuantizedCache(config=config, **settings)
    from tqkv.transformers import TqkvCache

    return TqkvCache(config, kv=settings)


def held(thing, seen: set) -> int:
    """Bytes of the tensors that a cache holds, packed ones as stored, and of rows of a TqkvCache."""
    import torch
    import tqkv

    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, tqkv.KvCache):
        return thing.stats()["allocated_bytes"]
    if isinstance(thing, torch.Tensor):
        if hasattr(thing, "__tensor_flatten__"):
            return sum(held(getattr(thing, name), seen) for name in thing.__tensor_flatten__()[0])
        return thing.nbytes
    parts = thing if isinstance(thing, (list, tuple)) else ()
    parts = thing.values() if isinstance(thing, dict) else parts
    module = type(thing).__module__
    if module.startswith(("transformers.cache_utils", "tqkv.")):
        parts = vars(thing).values()
    return sum(held(part, seen) for part in parts)


def resident(field: str) -> int:
    """Bytes of main memory of this process. VmHWM is the peak since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    sys.exit(f"no {field} in /proc/self/status")


def settle() -> None:
    """Returns freed memory to the system, and resets the peak."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def context(arguments) -> dict:
    """Writes keys and values of the context, layer by layer, to a file for the other processes."""
    import torch
    from transformers import DynamicCache

    torch.set_num_threads(arguments.threads)
    model, ids = load(arguments)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(ids[:, : arguments.context], past_key_values=cache, logits_to_keep=1)
    torch.save([(layer.keys, layer.values) for layer in cache.layers], f"{arguments.folder}/context-{arguments.codec}.pt")
    return {}


def decode(arguments) -> dict:
    """Measures one cache."""
    import torch

    attention, settings = CACHES[arguments.step]
    torch.set_num_threads(arguments.threads)
    model, ids = load(arguments)
    with torch.no_grad():
        # Load and compile everything that the first use needs, before memory is measured.
        warm = make(model.config, settings)
        for at in (slice(0, 256), slice(256, 257)):
            model(ids[:, at], past_key_values=warm, logits_to_keep=1)
        del warm
        settle()
        before = resident("VmRSS")
        cache, begin = make(model.config, settings), 0.0
        for index, (keys, values) in enumerate(torch.load(f"{arguments.folder}/context-{arguments.codec}.pt", mmap=True)):
            keys, values = keys.clone(), values.clone()
            start = time.process_time()
            cache.update(keys, values, index)
            begin += time.process_time() - start
        del keys, values
        if attention != "sdpa":
            model.set_attn_implementation(attention)
        step = torch.compile(model, dynamic=True) if arguments.compile else model
        clock = time.process_time if arguments.threads == 1 else time.perf_counter
        settle()
        times, rows = [], []
        for at in range(arguments.context, arguments.context + arguments.tokens):
            start = clock()
            logits = step(ids[:, at : at + 1], past_key_values=cache).logits[0, -1]
            times.append(clock() - start)
            rows.append(logits.clone())
        peak = resident("VmHWM")
    predicted = torch.stack(rows).double().log_softmax(-1)
    exact = Path(arguments.folder, "exact.pt")
    if settings is None and not arguments.codec:
        torch.save(predicted, exact)
    expected = torch.load(exact)
    kl = (expected.exp() * (expected - predicted)).sum(-1).mean()
    same = (expected.argmax(-1) == predicted.argmax(-1)).double().mean()
    speed = 1 / statistics.median(times)
    figures = {"speed": speed, "begin": begin, "kl": float(kl), "same": float(same)}
    return {"held": held(cache, set()), "peak": peak - before, "all": peak, **figures}


def main(arguments) -> None:
    from importlib.metadata import PackageNotFoundError, version

    def said(name):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return f"no {name}"

    names = ("torch", "transformers", "optimum-quanto", "hqq", "tqkv-cache")
    print(f"{arguments.context} tokens of context, {arguments.tokens} more one by one, {arguments.dtype} weights, {arguments.threads} thread(s){', compiled' * arguments.compile};")
    print(f"{', '.join(map(said, names))}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}\n")
    print("| cache | MB held | MB at most while decoding | tokens/s | s to take the context up | KL | top-1 | MB of the process |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for codec in ("", *arguments.weights):
            run(arguments, "context", folder, codec)
            for name in arguments.caches or (WITH_WEIGHTS if codec else CACHES):
                row = run(arguments, name, folder, codec)
                cells = [f"{name}, weights {codec}" if codec else name, f"{row['held'] / 1e6:.1f}", f"{row['peak'] / 1e6:.0f}"]
                cells += [f"{row['speed']:.2f}", f"{row['begin']:.2f}", f"{row['kl']:.5f}", f"{100 * row['same']:.1f} %"]
                print("| " + " | ".join([*cells, f"{row['all'] / 1e6:.0f}"]) + " |", flush=True)


def run(arguments, name: str, folder: str, codec: str) -> dict:
    """Runs a step in its own process."""
    threads = str(arguments.threads)
    # quanto compiles its kernels with the ninja that pip has installed.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "RAYON_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    command = [sys.executable, __file__, *sys.argv[1:], "--step", name, "--folder", folder, "--codec", codec]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="pass the model through torch.compile")
    parser.add_argument("--weights", action="append", default=[], metavar="CODEC", help="such as t4 or i8; may be repeated")
    parser.add_argument("--caches", action="append", choices=list(CACHES), metavar="ROW", help="rows in place of all: DynamicCache, which is needed, and others")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--codec", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step is None:
        main(given)
    else:
        print(json.dumps((context if given.step == "context" else decode)(given)), flush=True)
