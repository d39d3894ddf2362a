"""Runs the serde through LMCache's own processor, wrapper and L2 adapters: files, and a Redis server if one is installed."""

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lmcache", reason="lmcache is not installed")

from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.config import L1ManagerConfig, L1MemoryManagerConfig
from lmcache.v1.distributed.l1_manager import L1Manager
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

import tqkv
import tqkv.lmcache
from tqkv.payload import Format, decode

LAYERS, TOKENS, HEADS, DIM = 3, 32, 2, 64
SHAPE = (2, LAYERS, TOKENS, HEADS * DIM)
OPTIONS = {"codec": "t4,t3", "head_dim": DIM}


def chunk(*shapes, dtype=torch.bfloat16, layout=MemoryFormat.UNDEFINED, seed=None):
    """A memory object like those of the L1 manager, with random numbers or zeros."""
    shapes = [torch.Size(shape) for shape in shapes or [SHAPE]]
    if seed is not None:
        torch.manual_seed(seed)
    count = sum(shape.numel() for shape in shapes)
    data = (torch.zeros(count) if seed is None else torch.randn(count)).to(dtype).view(torch.uint8)
    meta = MemoryObjMetadata(shapes[0], dtype, 0, len(data), 1, 0, layout, None, shapes, [dtype] * len(shapes))
    return TensorMemoryObj(data, meta, None)


def buffer(size):
    meta = MemoryObjMetadata(torch.Size([size]), torch.uint8, 0, size, 1, shapes=[torch.Size([size])], dtypes=[torch.uint8])
    return TensorMemoryObj(torch.zeros(size, dtype=torch.uint8), meta, None)


def key(i):
    return ObjectKey(chunk_hash=bytes([i]) * 8, model_name="org/model", kv_rank=0)


def as_decoded(obj, codec="t4,t3"):
    """The bytes of a chunk [2, layers, tokens, width] after encoding and decoding a payload."""
    keys, values = (side.view(LAYERS, TOKENS, HEADS, DIM) for side in obj.tensor.unbind(0))
    out = torch.zeros(2, LAYERS, TOKENS, HEADS, DIM, dtype=obj.tensor.dtype)
    decode(Format(codec).encode([(keys, values)]), [tuple(out.unbind(0))])
    return out.view(torch.uint8).flatten()


def until(ready, seconds=20):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (result := ready()) is not None:
            return result
        time.sleep(0.002)
    raise AssertionError("no answer")


class L2:
    """An adapter for a configuration, wrapped with its serde as in the storage manager."""

    def __init__(self, **config):
        config.setdefault("serde", {"type": "tqkv", **OPTIONS})
        args = argparse.Namespace(l2_adapter=[json.dumps(config)])
        (parsed,) = parse_args_to_l2_adapters_config(args).adapters
        memory = L1MemoryManagerConfig(64 << 20, use_lazy=False, shm_name="")
        self.l1 = L1Manager(L1ManagerConfig(memory))
        serde = create_serde_processor(parsed.serde_config)
        self.adapter = SerdeL2AdapterWrapper(create_l2_adapter(parsed, None), serde, self.l1)

    def submit_store(self, keys, chunks):
        return self.adapter.submit_store_task(keys, chunks)

    def stored(self, task):
        return until(lambda: self.adapter.pop_completed_store_tasks().get(task))

    def store(self, keys, chunks):
        return self.stored(self.submit_store(keys, chunks))

    def found(self, keys):
        task = self.adapter.submit_lookup_and_lock_task(keys, {})
        bits = until(lambda: self.adapter.query_lookup_and_lock_result(task))
        return [bits.test(i) for i in range(len(keys))]

    def load(self, keys, chunks):
        task = self.adapter.submit_load_task(keys, chunks)
        bits = until(lambda: self.adapter.query_load_result(task))
        return [bits.test(i) for i in range(len(keys))]

    def close(self):
        self.adapter.close()
        self.l1.close()


@pytest.fixture
def server(tmp_path):
    """Starts a Redis (or Valkey) server at a free port. A second call starts it again with its data."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = []

    def start():
        options = ["--port", str(port), "--dir", str(tmp_path), "--save", "", "--appendonly", "yes"]
        running.append(subprocess.Popen([program, *options], stdout=subprocess.DEVNULL))
        until(lambda: answers(port))
        return running[-1], {"type": "resp", "host": "127.0.0.1", "port": port, "num_workers": 2}

    yield start
    for process in running:
        process.kill()
        process.wait()


def answers(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as s:
            s.sendall(b"PING\r\n")
            return s.recv(16).startswith(b"+PONG") or None
    except OSError:
        return None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    "shapes, layout, keys, values",
    [
        ([SHAPE], MemoryFormat.UNDEFINED, lambda x: x[0], lambda x: x[1]),
        ([SHAPE], MemoryFormat.KV_2LTD, lambda x: x[0], lambda x: x[1]),
        ([(2, TOKENS, 128)], MemoryFormat.KV_2TD, lambda x: x[0], lambda x: x[1]),
        ([(TOKENS, 2, 128)], MemoryFormat.KV_T2D, lambda x: x[:, 0], lambda x: x[:, 1]),
        ([SHAPE, (2, 1, TOKENS, 64)], MemoryFormat.UNDEFINED, lambda x: x[0], lambda x: x[1]),
    ],
)
def test_processor_writes_the_size_it_estimates(dtype, shapes, layout, keys, values):
    serde = create_serde_processor(SerdeConfig("tqkv", OPTIONS))
    src = chunk(*shapes, dtype=dtype, layout=layout, seed=1)
    size = serde.estimate_serialized_size(MemoryLayoutDesc(src.get_shapes(), src.get_dtypes()))
    raw, dst = buffer(size), chunk(*shapes, dtype=dtype, layout=layout)
    task = serde.submit_serialize([src], [raw], [key(0)])
    assert until(lambda: serde.query_serialize_result(task)) is True and raw.get_size() == size
    task = serde.submit_deserialize([raw], [dst], [key(0)])
    assert until(lambda: serde.query_deserialize_result(task)) is True
    for i in range(len(shapes)):
        k, v = (side(src.get_tensor(i)).unflatten(-1, (-1, DIM)) for side in (keys, values))
        axes = (k.shape if k.dim() == 4 else (1, *k.shape))
        want = torch.zeros(axes, dtype=dtype), torch.zeros(axes, dtype=dtype)
        decode(Format("t4,t3").encode([(k.reshape(axes), v.reshape(axes))]), [want])
        for side, wanted in zip((keys, values), want):
            assert torch.equal(side(dst.get_tensor(i)).unflatten(-1, (-1, DIM)).reshape(axes), wanted)
    serde.close()


@pytest.mark.parametrize(
    "shape, layout",
    [
        ((LAYERS, TOKENS, 128), MemoryFormat.UNDEFINED),
        ((2, TOKENS, 128), MemoryFormat.UNDEFINED),
        ((1, LAYERS, TOKENS, 128), MemoryFormat.KV_MLA_FMT),
        # Four axes of another layout, as a later version may add.
        ((2, LAYERS, TOKENS, 128), MemoryFormat.BINARY),
        ((TOKENS, 128), MemoryFormat.HS_TD),
        ((2, LAYERS, TOKENS, 100), MemoryFormat.KV_2LTD),
    ],
)
def test_layouts_without_keys_and_values_are_refused_by_name(shape, layout):
    deserializer = tqkv.lmcache.TqkvDeserializer(DIM)
    with pytest.raises(tqkv.TqkvError, match=r"shape \["):
        deserializer.deserialize(buffer(1000), chunk(shape, layout=layout), key(0))


@pytest.mark.parametrize("wrong", [{}, {"head_dim": 0}, {"head_dim": 64, "codec": "zip"}, {"head_dim": 64, "bits": 3},
                                   {"head_dim": 64, "max_workers": "2"}, {"head_dim": 64, "exact": -1}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(tqkv.TqkvError):
        create_serde_processor(SerdeConfig("tqkv", wrong))


def test_files_hold_payloads_and_damaged_ones_are_misses(tmp_path):
    l2 = L2(type="fs", base_path=str(tmp_path))
    sources, keys = [chunk(seed=i) for i in range(4)], [key(i) for i in range(4)]
    size = 4 * Format("t4,t3").size((LAYERS, TOKENS, HEADS, DIM), torch.bfloat16)
    assert l2.store(keys, sources) == size
    files = sorted(tmp_path.rglob("*.data"))
    assert len(files) == 4 and sum(file.stat().st_size for file in files) == size
    got = [chunk() for _ in keys]
    assert l2.found(keys + [key(9)]) == [True] * 4 + [False]
    assert l2.load(keys, got) == [True] * 4
    for source, copy in zip(sources, got):
        assert torch.equal(copy.raw_data, as_decoded(source))
    whole = files[0].read_bytes()
    broken = next(i for i in range(4) if keys[i].chunk_hash.hex() in files[0].name)
    for damaged in (whole[:-1], whole[:-9] + b"\0" + whole[-8:], b"\x89PNG" + whole[4:], whole[:99], b""):
        files[0].write_bytes(damaged)
        target = chunk()
        assert l2.load([keys[broken]], [target]) == [False]
        assert not target.raw_data.any()
    l2.close()


def test_a_damaged_entry_is_removed_and_is_then_no_hit(tmp_path):
    l2 = L2(type="fs", base_path=str(tmp_path))
    keys = [key(1), key(2)]
    assert l2.store(keys, [chunk(seed=1), chunk(seed=2)])
    (file,) = tmp_path.rglob(f"*{keys[0].chunk_hash.hex()}*.data")
    whole = file.read_bytes()
    file.write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    assert l2.found(keys) == [True, True] and l2.load([keys[0]], [chunk()]) == [False]
    assert l2.found(keys) == [False, True] and not file.exists()
    assert l2.store([keys[0]], [chunk(seed=1)])
    assert l2.found(keys) == [True, True] and l2.load(keys, [chunk(), chunk()]) == [True, True]
    l2.close()


def test_a_chunk_of_another_dtype_or_model_is_a_miss(tmp_path):
    l2 = L2(type="fs", base_path=str(tmp_path))
    assert l2.store([key(1)], [chunk(seed=1)])
    for other in (chunk(dtype=torch.float16), chunk((2, LAYERS, TOKENS, 4 * DIM)), chunk((2, LAYERS + 1, TOKENS, 2 * DIM))):
        assert l2.load([key(1)], [other]) == [False] and not other.raw_data.any()
        l2.store([key(1)], [chunk(seed=1)])
    l2.close()


READER = """
import importlib.util, json, sys

module = importlib.util.spec_from_file_location("doors", sys.argv[1])
doors = importlib.util.module_from_spec(module)
module.loader.exec_module(doors)
l2 = doors.L2(**json.loads(sys.argv[2]))
keys = [doors.key(i) for i in range(9)]
got = [doors.chunk() for _ in keys[:8]]
assert l2.found(keys) == [True] * 8 + [False], "lookup"
assert l2.load(keys[:8], got) == [True] * 8, "load"
l2.close()
doors.torch.save([chunk.raw_data for chunk in got], sys.argv[3])
"""


def test_another_process_reads_what_a_redis_server_holds(server, tmp_path):
    _, config = server()
    writer = L2(**config)
    sources, keys = [chunk(seed=i) for i in range(8)], [key(i) for i in range(8)]
    tasks = [writer.submit_store([k], [source]) for k, source in zip(keys, sources)]
    size = Format("t4,t3").size((LAYERS, TOKENS, HEADS, DIM), torch.bfloat16)
    done = {}
    until(lambda: done.update(writer.adapter.pop_completed_store_tasks()) or (len(done) == 8 or None))
    assert [done[task] for task in tasks] == [size] * 8
    # The writer is gone before the reader begins.
    writer.close()
    arguments = [sys.executable, "-c", READER, __file__, json.dumps(config), str(tmp_path / "read")]
    reader = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert reader.returncode == 0, reader.stderr
    for source, data in zip(sources, torch.load(tmp_path / "read"), strict=True):
        assert torch.equal(data, as_decoded(source))


def test_damaged_entries_of_a_redis_server_are_misses(server):
    redis = pytest.importorskip("redis")
    _, config = server()
    l2, client = L2(**config), redis.Redis(port=config["port"])
    assert l2.store([key(1)], [chunk(seed=1)]) > 0
    (name,) = client.keys()
    whole = client.get(name)
    assert len(whole) == Format("t4,t3").size((LAYERS, TOKENS, HEADS, DIM), torch.bfloat16)
    assert l2.store([key(2)], [chunk(seed=2)]) > 0
    (other,) = (client.get(entry) for entry in client.keys() if entry != name)
    for damaged in (whole[: len(whole) // 2].ljust(len(whole), b"\0"), b"\0" * len(whole), other):
        client.set(name, damaged)
        target = chunk()
        assert l2.load([key(1)], [target]) == [False] and not target.raw_data.any()
    client.set(name, whole)
    assert l2.load([key(1)], [chunk()]) == [True]
    # LMCache's client for Redis is no longer usable after an answer of an unexpected length.
    for damaged in (whole[:-1], whole + b"\0"):
        client.set(name, damaged)
        target = chunk()
        assert L2(**config).load([key(1)], [target]) == [False] and not target.raw_data.any()
    l2.close()


def test_a_server_killed_in_the_middle_of_stores_leaves_whole_chunks_or_none(server):
    process, config = server()
    l2 = L2(**config)
    sources, keys = [chunk(seed=i) for i in range(40)], [key(i) for i in range(40)]
    tasks = [l2.submit_store([k], [source]) for k, source in zip(keys, sources)]
    done = {}
    until(lambda: done.update(l2.adapter.pop_completed_store_tasks()) or (len(done) >= 5 or None))
    process.kill()
    process.wait()
    until(lambda: done.update(l2.adapter.pop_completed_store_tasks()) or (len(done) == len(tasks) or None))
    assert 0 < sum(result > 0 for result in done.values()) < len(tasks)
    server()
    reader = L2(**config)
    found = reader.found(keys)
    assert sum(result > 0 for result in done.values()) <= sum(found) < len(tasks)
    for source, k, there in zip(sources, keys, found):
        target = chunk()
        if there:
            assert reader.load([k], [target]) == [True]
            assert torch.equal(target.raw_data, as_decoded(source))
    reader.close()
