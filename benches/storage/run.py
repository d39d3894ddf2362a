"""The storage tier compared with other ways to store keys and values, on the same pages of a real model.

    python benches/storage/run.py --model model.gguf --learn LEARN --text TEXT

The model is a GGUF file of an architecture that Transformers reads. A basis, and the tables of the recipes, are learned from LEARN,
four windows of 2,048 tokens. A prefix of 2,048 tokens of TEXT is stored, and the model predicts the next 256 tokens after what
was read back. Needs the packages tqkv (this repository's), torch, transformers, accelerate, gguf, zstandard and constriction. Prints
a table in Markdown.

Errors are squared errors of keys and of values over their squares, after the first four tokens. KL is to the prefix
in bf16. GB/s are bytes of bf16 per second of processor time, one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

PREFIX, NEXT, WINDOWS, CHUNK = 2048, 256, 4, 256


class Blocks:
    """tqkv's payload of blocks."""

    def __init__(self, codec: str, name: str = "", **options) -> None:
        from tqkv.payload import Format

        self.name, self.format = name or f"tqkv {codec}", Format(codec, **options)
        self.exact = self.format.exact

    def encode(self, bits):
        import torch

        return bytes(self.format.encode([tuple(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16))]))

    def decode(self, data, shape):
        import torch
        from tqkv.payload import decode

        bits = np.empty(shape, np.uint16)
        decode(data, [tuple(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16))])
        return bits


class Chunks:
    """tqkv's storage tier: chunks in a basis."""

    def __init__(self, storage, basis_bytes: int, budget: float) -> None:
        self.name, self.storage, self.budget, self.exact = f"tqkv, basis, {budget} bits", storage, budget, 4
        self.basis_bytes = basis_bytes

    def encode(self, bits):
        chunks = []
        for at in range(0, bits.shape[2], CHUNK):
            k, v = (np.ascontiguousarray(side[:, at : at + CHUNK]) for side in bits)
            chunks.append(self.storage.encode(k, v, self.budget, at).tobytes())
        return b"".join(chunks)

    def decode(self, data, shape):
        bits, data = np.empty(shape, np.uint16), np.frombuffer(data, np.uint8)
        for at in range(0, shape[2], CHUNK):
            size, tokens, _, _ = self.storage.peek(data)
            k, v = np.empty((2, shape[1], tokens, *shape[3:]), np.uint16)
            self.storage.decode(data[:size], k, v)
            bits[0, :, at : at + tokens], bits[1, :, at : at + tokens] = k, v
            data = data[size:]
        return bits


class Model:
    """A model of Transformers, with queries of its last tokens."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        files = {"gguf_file": path.name}
        self.torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(path.parent, **files)
        self.model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, attn_implementation="eager", **files).eval()
        config = self.model.config
        self.heads = config.num_key_value_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        parameters = getattr(config, "rope_parameters", None) or {}
        self.theta = parameters.get("rope_theta") or config.rope_theta

    def tokens(self, path: Path, count: int, skip: int = 0) -> list[int]:
        text = path.read_bytes()[skip : skip + 8 * count].decode("utf-8", "replace")
        ids = self.tokenizer(text)["input_ids"]
        if len(ids) < count:
            sys.exit(f"{path} has {len(ids)} tokens: expected at least {count}")
        return ids[:count]

    def prefill(self, ids: list[int]) -> np.ndarray:
        """Keys, after RoPE, and values `[2, layers, tokens, heads, head_dim]`, rounded to bf16."""
        with self.torch.no_grad():
            cache = self.model(self.torch.tensor([ids]), use_cache=True).past_key_values
        sides = [self.torch.stack([getattr(layer, side)[0].transpose(0, 1) for layer in cache.layers]) for side in ("keys", "values")]
        return self.torch.stack(sides).bfloat16().float().numpy()

    def predict(self, kv: np.ndarray, ids: list[int]):
        """Logarithms of the probabilities after a prefix."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer, (k, v) in enumerate(zip(*self.torch.from_numpy(kv).transpose(2, 3))):
            cache.update(k[None], v[None], layer)
        with self.torch.no_grad():
            logits = self.model(self.torch.tensor([ids]), past_key_values=cache).logits[0]
        return logits.double().log_softmax(-1)

    def turn(self, kv: np.ndarray, sign: int) -> np.ndarray:
        """Turns keys by their positions, counted from the first token of each window of `PREFIX`, or back."""
        half = self.dim // 2
        angles = sign * (np.arange(kv.shape[2]) % PREFIX)[:, None] * self.theta ** (-np.arange(half) / half)
        cos, sin = (f(angles)[:, None].astype(np.float32) for f in (np.cos, np.sin))
        a, b = kv[0, ..., :half], kv[0, ..., half:]
        return np.stack([np.concatenate([a * cos - b * sin, b * cos + a * sin], -1), kv[1]])


def seconds(work, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def storages(model: Model, learned: np.ndarray, path: Path):
    """tqkv's storage, with the basis learned from the same windows."""
    import tqkv
    from recipes import bf16

    learner = tqkv.Learner(learned.shape[1], model.heads, model.dim, tqkv.Rope.of(model.theta, model.dim))
    for at in range(0, learned.shape[2], PREFIX):
        learner.learn(*(np.ascontiguousarray(bf16(side[:, at : at + PREFIX])) for side in learned), 0)
    basis = learner.freeze("beside")
    basis.save(path)
    return tqkv.Storage(basis), path.stat().st_size


def ways(model: Model, learned: np.ndarray, folder: Path):
    """Names of ways, and functions that make them."""
    from recipes import CacheGen, Kvtc, Zstd

    yield from ((f"zstd -{level}", partial(Zstd, level)) for level in (3, 19))
    for codec in ("q8_0", "q4_0"):
        yield codec, partial(Blocks, codec, f"{codec} of llama.cpp", exact=0, centre=False)
    yield from ((f"tqkv {codec}", partial(Blocks, codec)) for codec in ("s4", "t4", "t3", "t2"))
    learn = lru_cache(1)(partial(storages, model, learned, folder / "basis.tqb"))
    yield from ((f"tqkv basis {budget}", lambda: Chunks(*learn(), budget)) for budget in (1.1, 2.1, 3.1))
    for exact in (0, 4):
        yield from ((f"CacheGen {scale} {exact}", partial(CacheGen, learned, scale, exact)) for scale in (0.5, 1, 2))
    for together in (1, learned.shape[1]):
        yield from ((f"KVTC {together} {budget}", partial(Kvtc, learned, model.turn, budget, together)) for budget in (1.1, 2.1, 3.1))


def row(way, model: Model, kv: np.ndarray, ids: list[int], reference) -> dict:
    from recipes import bf16, wide

    bits = bf16(kv)
    data = way.encode(bits)
    got, size = wide(way.decode(data, bits.shape)), len(data)
    if "recipe" in way.name and way.exact:
        # Beside the recipe's bytes, which have these tokens too.
        got[:, :, : way.exact] = kv[:, :, : way.exact]
        size += bits[:, :, : way.exact].nbytes
    repeats = 3 if way.name.startswith("tqkv") else 1
    encode, decode = (seconds(work, repeats) for work in (lambda: way.encode(bits), lambda: way.decode(data, bits.shape)))
    errors = [float(((got[i, :, 4:] - kv[i, :, 4:]) ** 2).sum() / (kv[i, :, 4:] ** 2).sum()) for i in range(2)]
    predicted = model.predict(got, ids[PREFIX:])
    kl = float((reference.exp() * (reference - predicted)).sum(-1).mean())
    same = float((reference.argmax(-1) == predicted.argmax(-1)).double().mean())
    gigabytes = bits.nbytes / 1e9
    return dict(name=way.name, exact=way.exact, bits=8 * size / bits.size, basis=getattr(way, "basis_bytes", 0), keys=errors[0],
                values=errors[1], kl=kl, same=same, encode=gigabytes / encode, decode=gigabytes / decode)


def line(found: dict) -> str:
    name = found["name"] + (", 4 exact tokens" if found["exact"] and "recipe" in found["name"] else "")
    basis = f"{found['basis'] / 1e6:.1f}" if found["basis"] else ""
    errors = (f"{found[what]:.5f}".lstrip("0") if found[what] else "0" for what in ("keys", "values", "kl"))
    speeds = (f"{found[what]:.3f}".lstrip("0") for what in ("encode", "decode"))
    return f"| {name} | {found['bits']:.2f} | {basis} | {' | '.join(errors)} | {100 * found['same']:.1f} % | {' | '.join(speeds)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "learn", "text"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--skip", type=int, default=0, help="bytes of the text before the prefix")
    parser.add_argument("--only", default="", help="ways whose names have this in them, such as KVTC")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    arguments = parser.parse_args()
    if not arguments.here:
        threads = {name: "1" for name in ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        sys.exit(subprocess.run([sys.executable, *sys.argv, "--here"], env={**os.environ, **threads}).returncode)
    model = Model(arguments.model)
    lessons = model.tokens(arguments.learn, WINDOWS * PREFIX)
    learned = np.concatenate([model.prefill(lessons[at : at + PREFIX]) for at in range(0, len(lessons), PREFIX)], 2)
    ids = model.tokens(arguments.text, PREFIX + NEXT, arguments.skip)
    kv = model.prefill(ids[:PREFIX])
    reference = model.predict(kv, ids[PREFIX:])
    print("| stored as | bits | basis, MB | error of keys | of values | KL | top-1 | encode, GB/s | decode |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, make in ways(model, learned, Path(folder)):
            if arguments.only in name:
                print(line(row(make(), model, kv, ids, reference)), flush=True)


if __name__ == "__main__":
    main()
