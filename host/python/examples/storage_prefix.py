"""One process stores a prefix of a real model in files, and another loads it: at 1 and 2 bits, as t3, as t2 and uncompressed.

    python examples/storage_prefix.py --model DIR_OR_GGUF --learn TEXT --text TEXT

The first process learns a basis from windows of one text, reads 2,048 tokens of the other and stores their keys and values in chunks of
256 tokens. The second process loads them and predicts the next 256 tokens. Needs transformers and zstandard, and for a GGUF file gguf
and accelerate. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tqkv import Learner, Rope
from tqkv.payload import Format, decode

PREFIX, NEXT, CHUNK, REPEATS, WINDOWS, WINDOW = 2048, 256, 256, 3, 4, 1024


def formats(folder: Path) -> dict[str, Format | None]:
    basis = str(folder / "basis.tqb")
    tier = {f"storage {bits}": Format(budget=bits, basis=basis) for bits in (1.0, 1.1, 2.0, 2.1)}
    return {"bf16": None, "t3": Format("t3"), "t2": Format("t2"), **tier}


def load_model(path: str):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, name = (os.path.dirname(path), os.path.basename(path)) if path.endswith(".gguf") else (path, None)
    options = {"gguf_file": name} if name else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", **options).eval()
    return model, AutoTokenizer.from_pretrained(folder, **options)


def ids_of(tokenizer, path: str, count: int) -> torch.Tensor:
    ids = tokenizer(Path(path).read_text(encoding="utf-8")[:200_000])["input_ids"]
    assert len(ids) >= count, f"{path} is too short"
    return torch.tensor([ids[:count]])


def prefill(model, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values `[layers, tokens, heads, head_dim]`."""
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    keys, values = ([getattr(layer, side)[0].transpose(0, 1) for layer in cache.layers] for side in ("keys", "values"))
    return torch.stack(keys).bfloat16().contiguous(), torch.stack(values).bfloat16().contiguous()


def store(arguments) -> dict:
    """The first process."""
    import zstandard

    folder = Path(arguments.folder)
    model, tokenizer = load_model(arguments.model)
    frequencies = tuple(model.model.rotary_emb.inv_freq.double().tolist())
    text = ids_of(tokenizer, arguments.learn, WINDOWS * WINDOW)
    learner = None
    for window in text.split(WINDOW, 1):
        k, v = prefill(model, window)
        learner = learner or Learner(k.shape[0], k.shape[2], k.shape[3], Rope(frequencies))
        learner.learn(k, v)
    learner.freeze(arguments.model).save(folder / "basis.tqb")
    begin = time.perf_counter()
    keys, values = prefill(model, ids_of(tokenizer, arguments.text, PREFIX))
    rows, prefilled = {}, time.perf_counter() - begin
    parts = list(zip(keys.split(CHUNK, 1), values.split(CHUNK, 1)))
    for name, format in formats(folder).items():
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            for i, part in enumerate(parts):
                data = raw(part) if format is None else format.encode([part], name=str(i))
                (folder / f"{name}.{i}").write_bytes(bytes(data))
            times.append(time.perf_counter() - begin)
        size = sum((folder / f"{name}.{i}").stat().st_size for i in range(len(parts)))
        rows[name] = {"bytes": size, "store": statistics.median(times)}
    begin = time.perf_counter()
    packed = sum(len(zstandard.compress(raw(part), 3)) for part in parts)
    rows["zstd -3 of bf16"] = {"bytes": packed, "store": time.perf_counter() - begin}
    return {"rows": rows, "shape": list(parts[0][0].shape), "prefill": prefilled}


def raw(part: tuple[torch.Tensor, torch.Tensor]) -> bytes:
    return b"".join(bytes(x.contiguous().view(torch.uint8).numpy().reshape(-1)) for x in part)


def load(arguments) -> dict:
    """The second process: the shape of a chunk comes from the first."""
    from transformers import DynamicCache

    folder, shape = Path(arguments.folder), json.loads(arguments.shape)
    model, tokenizer = load_model(arguments.model)
    ids = ids_of(tokenizer, arguments.text, PREFIX + NEXT)
    rows, exact = {}, None
    for name, format in formats(folder).items():
        times = []
        for _ in range(REPEATS):
            begin, parts = time.perf_counter(), []
            for i in range(PREFIX // CHUNK):
                data = (folder / f"{name}.{i}").read_bytes()
                if format is None:
                    parts.append(torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(2, *shape))
                    continue
                parts.append(torch.empty(2, *shape, dtype=torch.bfloat16))
                decode(data, [tuple(parts[-1])], str(i), format.basis)
            times.append(time.perf_counter() - begin)
        kv = torch.cat(parts, 2).float().transpose(2, 3)
        cache = DynamicCache()
        for layer in range(kv.shape[1]):
            cache.update(kv[0, layer][None], kv[1, layer][None], layer)
        with torch.no_grad():
            predicted = model(ids[:, PREFIX:], past_key_values=cache).logits[0].double().log_softmax(-1)
        exact = predicted if exact is None else exact
        kl = (exact.exp() * (exact - predicted)).sum(-1)
        same = (exact.argmax(-1) == predicted.argmax(-1)).double().mean()
        p99 = float(kl.sort().values[len(kl) * 99 // 100])
        rows[name] = {"load": statistics.median(times), "kl": float(kl.mean()), "p99": p99, "same": float(same)}
    return {"rows": rows}


def step(arguments, name: str, **more) -> dict:
    """Runs a function of this file in its own process."""
    options = {"model": arguments.model, "learn": arguments.learn, "text": arguments.text, **more}
    command = [sys.executable, __file__, "--step", name, *(f"--{key}={value}" for key, value in options.items())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stored = step(arguments, "store", folder=folder)
        loaded = step(arguments, "load", folder=folder, shape=json.dumps(stored["shape"]))
    values = 2 * PREFIX * stored["shape"][0] * stored["shape"][2] * stored["shape"][3]
    print(f"{PREFIX} tokens in chunks {stored['shape']}, prefilled in {stored['prefill']:.1f} s; {os.cpu_count()} cores\n")
    print("| stored as | bytes | bits per value | ms to store | ms to load | KL of the next tokens | 99 % | top-1 |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, row in stored["rows"].items():
        back = loaded["rows"].get(name)
        cells = [name, f"{row['bytes']:,}", f"{8 * row['bytes'] / values:.3f}", f"{1e3 * row['store']:.0f}"]
        if back:
            cells += [f"{1e3 * back['load']:.0f}", f"{back['kl']:.5f}", f"{back['p99']:.3f}", f"{100 * back['same']:.2f} %"]
        print("| " + " | ".join(cells + [""] * (8 - len(cells))) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for needed in ("model", "learn", "text"):
        parser.add_argument(f"--{needed}", required=True)
    for hidden in ("step", "shape", "folder"):
        parser.add_argument(f"--{hidden}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step is None:
        main(given)
    else:
        print(json.dumps({"store": store, "load": load}[given.step](given)), flush=True)
