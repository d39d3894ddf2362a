"""A prefix of a real model goes through LMCache's serde and RESP adapter to Redis, and comes back in another process.

    python examples/lmcache_prefix.py --model DIR --text FILE

DIR is a model of Hugging Face Transformers with `config.json`, tokenizer and safetensors. Needs the packages lmcache, transformers and
zstandard, and the program redis-server (or valkey-server). One process reads 2,048 tokens of the text and stores their keys and
values, in chunks of 256 tokens, once with each codec and once uncompressed (bf16). A second process loads each of them and predicts
the next 256 tokens. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time

PREFIX, NEXT, CHUNK, REPEATS = 2048, 256, 256, 5
SERDES = {
    "bf16": None,
    "i8": {"codec": "i8"},
    "t4": {"codec": "t4"},
    "s4": {"codec": "s4"},
    "t4,t3": {"codec": "t4,t3"},
    "t3": {"codec": "t3"},
    "t3, keys not centred": {"codec": "t3", "centre": False},
    "t3, no exact tokens": {"codec": "t3", "exact": 0},
}


class Adapter:
    """LMCache's RESP adapter with a serde, as in its storage manager."""

    def __init__(self, port: int, serde: dict | None, head_dim: int) -> None:
        import tqkv.lmcache  # noqa: F401  registers the serde
        from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
        from lmcache.v1.distributed.l1_manager import L1Manager
        from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
        from lmcache.v1.distributed.l2_adapters import create_l2_adapter
        from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
        from lmcache.v1.distributed.serde import create_serde_processor

        config = {"type": "resp", "host": "127.0.0.1", "port": port, "num_workers": 4}
        if serde is not None:
            config["serde"] = {"type": "tqkv", "head_dim": head_dim, **serde}
        (parsed,) = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(config)])).adapters
        self.l2 = create_l2_adapter(parsed, None)
        if serde is not None:
            l1 = L1Manager(L1ManagerConfig(L1MemoryManagerConfig(256 << 20, use_lazy=False, shm_name="")))
            self.l2 = SerdeL2AdapterWrapper(self.l2, create_serde_processor(parsed.serde_config), l1)

    def store(self, keys: list, chunks: list) -> tuple[float, int]:
        """Stores chunks. Returns seconds and bytes on the wire."""
        begin = time.perf_counter()
        task = self.l2.submit_store_task(keys, chunks)
        done = wait(lambda: self.l2.pop_completed_store_tasks().get(task))
        assert done > 0, "the store failed"
        return time.perf_counter() - begin, int(done)

    def load(self, keys: list, chunks: list) -> float:
        """Loads chunks. Returns seconds."""
        begin = time.perf_counter()
        task = self.l2.submit_load_task(keys, chunks)
        found = wait(lambda: self.l2.query_load_result(task))
        assert found.popcount() == len(keys), "the load failed"
        return time.perf_counter() - begin


def wait(ready):
    while (result := ready()) is None:
        time.sleep(0.0002)
    return result


def chunk(shape):
    import torch
    from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj

    shape = torch.Size(shape)
    size = 2 * shape.numel()
    meta = MemoryObjMetadata(shape, torch.bfloat16, 0, size, 1, shapes=[shape], dtypes=[torch.bfloat16])
    return TensorMemoryObj(torch.zeros(size, dtype=torch.uint8), meta, None)


def keys_of(name: str, repeat: int) -> list:
    from lmcache.v1.distributed.api import ObjectKey

    salt = f"{name.replace(' ', '_')}-{repeat}"
    return [ObjectKey(i.to_bytes(8, "big"), "prefix", 0, cache_salt=salt) for i in range(PREFIX // CHUNK)]


def load_model(path: str):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()


def tokens(model: str, text: str):
    import torch
    from transformers import AutoTokenizer

    with open(text, encoding="utf-8") as file:
        ids = AutoTokenizer.from_pretrained(model)(file.read(200_000))["input_ids"]
    assert len(ids) >= PREFIX + NEXT, "the text is too short"
    return torch.tensor([ids[: PREFIX + NEXT]])


def store(arguments) -> dict:
    """The first process."""
    import torch
    import zstandard

    model = load_model(arguments.model)
    with torch.no_grad():
        cache = model(tokens(arguments.model, arguments.text)[:, :PREFIX], use_cache=True).past_key_values
    sides = [torch.stack([getattr(layer, side)[0].transpose(0, 1).flatten(1) for layer in cache.layers]) for side in ("keys", "values")]
    kv = torch.stack(sides).bfloat16()  # [2, layers, tokens, KV heads * head dim]
    chunks = []
    for part in kv.split(CHUNK, 2):
        chunks.append(chunk(part.shape))
        chunks[-1].tensor.copy_(part)
    rows = {}
    for name, serde in SERDES.items():
        adapter = Adapter(arguments.port, serde, head_dim(model))
        runs = [adapter.store(keys_of(name, repeat), chunks) for repeat in range(REPEATS)]
        rows[name] = {"bytes": runs[0][1], "store": statistics.median(seconds for seconds, _ in runs)}
    begin = time.perf_counter()
    packed = sum(len(zstandard.compress(bytes(c.byte_array), 3)) for c in chunks)
    rows["zstd -3 of bf16"] = {"bytes": packed, "store": time.perf_counter() - begin}
    return {"rows": rows, "shape": list(chunks[0].tensor.shape)}


def head_dim(model) -> int:
    config = model.config
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def load(arguments) -> dict:
    """The second process: the shape of a chunk comes from the first."""
    import torch
    from transformers import DynamicCache

    model, ids = load_model(arguments.model), tokens(arguments.model, arguments.text)
    shape, width = json.loads(arguments.shape), head_dim(model)
    rows, exact = {}, None
    for name, serde in SERDES.items():
        adapter = Adapter(arguments.port, serde, width)
        runs = []
        for repeat in range(REPEATS):
            chunks = [chunk(shape) for _ in range(PREFIX // CHUNK)]
            runs.append(adapter.load(keys_of(name, repeat), chunks))
        kv = torch.cat([c.tensor for c in chunks], 2).float().unflatten(-1, (-1, width)).transpose(2, 3)
        cache = DynamicCache()
        for layer in range(kv.shape[1]):
            cache.update(kv[0, layer][None], kv[1, layer][None], layer)
        with torch.no_grad():
            logits = model(ids[:, PREFIX:], past_key_values=cache).logits[0]
        predicted = logits.double().log_softmax(-1)
        exact = predicted if exact is None else exact
        kl = (exact.exp() * (exact - predicted)).sum(-1)
        same = (exact.argmax(-1) == predicted.argmax(-1)).double().mean()
        nll = -predicted[:-1].gather(1, ids[0, PREFIX + 1 :, None]).mean()
        rows[name] = {"load": statistics.median(runs), "kl": float(kl.mean()), "same": float(same), "nll": float(nll)}
    return {"rows": rows}


def speed(arguments) -> dict:
    """Bytes of bf16 per second of processor time. The environment limits this process to one thread."""
    import torch
    from tqkv.payload import Format, decode

    torch.set_num_threads(1)
    _, layers, count, width = json.loads(arguments.shape)
    dim = arguments.head_dim
    keys, values = torch.randn(2, layers, count, width // dim, dim).bfloat16()
    rows = {}
    for name, serde in SERDES.items():
        if serde is None:
            continue
        format, out = Format(**serde), (torch.empty_like(keys), torch.empty_like(values))
        data = format.encode([(keys, values)])
        work = {"encode": lambda: format.encode([(keys, values)], data), "decode": lambda: decode(data, [out])}
        rows[name] = {what: 4 * keys.numel() / best(run) for what, run in work.items()}
    return {"rows": rows}


def best(run) -> float:
    times = []
    for _ in range(7):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def start_server() -> tuple[subprocess.Popen, int]:
    program = shutil.which("redis-server") or shutil.which("valkey-server") or sys.exit("install redis-server or valkey-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, port
        except OSError:
            time.sleep(0.01)
    sys.exit("the server does not answer")


def step(arguments, name: str, environment: dict | None = None, **more) -> dict:
    """Runs a function of this file in its own process."""
    options = {"model": arguments.model, "text": arguments.text, **more}
    command = [sys.executable, __file__, "--step", name, *(f"--{key}={value}" for key, value in options.items())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **(environment or {})})
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments) -> None:
    from importlib.metadata import version

    server, port = start_server()
    try:
        stored = step(arguments, "store", port=port)
        shape = json.dumps(stored["shape"])
        loaded = step(arguments, "load", port=port, shape=shape)
    finally:
        server.kill()
    with open(os.path.join(arguments.model, "config.json")) as file:
        config = json.load(file)
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    fast = step(arguments, "speed", {"RAYON_NUM_THREADS": "1"}, shape=shape, head_dim=dim)
    names = ("lmcache", "torch", "transformers")
    program = subprocess.run([server.args[0], "--version"], capture_output=True, text=True).stdout.split()[:3]
    print(f"{PREFIX} tokens in chunks {shape}; {', '.join(f'{n} {version(n)}' for n in names)}, {' '.join(program)},")
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| serde | bytes | bf16's over these | ms to store | ms to load | KL of the next tokens | top-1 | encode, decode MB/s a core |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    whole = stored["rows"]["bf16"]["bytes"]
    for name, row in stored["rows"].items():
        back, rate = loaded["rows"].get(name), fast["rows"].get(name)
        cells = [name, f"{row['bytes']:,}", f"{whole / row['bytes']:.2f}", f"{1e3 * row['store']:.0f}"]
        cells += [f"{1e3 * back['load']:.0f}", f"{back['kl']:.6f}", f"{100 * back['same']:.2f} %"] if back else [""] * 3
        cells.append(f"{rate['encode'] / 1e6:.0f}, {rate['decode'] / 1e6:.0f}" if rate else "")
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    for hidden in ("step", "shape"):
        parser.add_argument(f"--{hidden}", help=argparse.SUPPRESS)
    for hidden in ("port", "head_dim"):
        parser.add_argument(f"--{hidden}", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step is None:
        main(given)
    else:
        print(json.dumps({"store": store, "load": load, "speed": speed}[given.step](given)), flush=True)
        os._exit(0)  # LMCache's threads do not end by themselves
