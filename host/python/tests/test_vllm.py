"""The secondary tier of KV offloading, created by vLLM's own factory over vLLM's own region."""

import functools
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed")

from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

import tqkv
from tqkv.payload import Format, decode

LAYERS, BLOCKS, HEADS, TOKENS, DIM, CHUNKS = 3, 4, 2, 16, 64, 8
CONTEXT = ReqContext(req_id="request")
AXES = (LAYERS, BLOCKS * TOKENS, HEADS, DIM)


def offloading(layout="LBNHC", workers=2, groups=1, dtype="bfloat16", canonical=False, extra_bytes=0, dcp=1):
    """The configuration that vLLM passes to a tier."""
    names = tuple(f"layer.{i}" for i in range(LAYERS))
    config = OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(TOKENS, names, i) for i in range(groups)),
        worker_kv_bytes_per_block=LAYERS * HEADS * TOKENS * 2 * DIM * 2 + extra_bytes,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="engine",
        model=OffloadingModelConfig("org/model", dtype),
        cache=OffloadingCacheConfig(TOKENS, BLOCKS),
        parallel=OffloadingParallelConfig(0, workers, workers, 1, 1, dcp, 0, 1, None, False),
        canonical_layout=canonical,
        kv_cache_layout=layout,
    )
    return SimpleNamespace(config=config, blocks_per_chunk=BLOCKS)


@pytest.fixture
def region():
    """The primary tier: rows of two workers, with padding."""
    row = 2 * BLOCKS * LAYERS * HEADS * TOKENS * 2 * DIM * 2
    made = SharedOffloadRegion(f"tqkv-{os.getpid()}-{uuid.uuid4().hex}", CHUNKS, None, row + 4096, row // 2)
    made.base_tensor.view(CHUNKS, -1).copy_(
        torch.cat([torch.randn(CHUNKS, row // 2).bfloat16().view(torch.int8), torch.ones(CHUNKS, 4096, dtype=torch.int8)], 1)
    )
    yield made
    made.cleanup()


def tier(region, spec=None, **options):
    config = {"type": "TqkvTier", "module_path": "tqkv.vllm", "head_dim": DIM, **options}
    return SecondaryTierFactory.create_secondary_tier(config, region.create_kv_memoryview(), spec or offloading())


def run(tier, submit, keys, chunks, job=[0]):
    job[0] += 1
    submit(TransferJob(job[0], keys, np.array(chunks), submit == tier.submit_load, CONTEXT))
    tier.drain_jobs()
    (result,) = tier.get_finished_jobs()
    assert result.job_id == job[0]
    return result


def look(tier, keys, ends=True):
    """What a request finds. Nothing is known in the step that asks first; answers come with the next steps of the scheduler."""
    found, end = [tier.lookup(key, CONTEXT) for key in keys], time.monotonic() + 20
    assert found == [LookupResult.RETRY] * len(keys)
    while LookupResult.RETRY in found:
        assert time.monotonic() < end, "no answer"
        tier.on_schedule_end(None)
        time.sleep(0.002)
        found = [tier.lookup(key, CONTEXT) for key in keys]
    if ends:
        tier.on_request_finished(CONTEXT)
    return found


def keys(count):
    return [make_offload_key(bytes([i]) * 32, 0) for i in range(count)]


def sides(region, layout, chunk):
    """Keys and values of each worker `[layers, tokens, heads, head_dim]`, read by the letters of vLLM's layouts."""
    sizes = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": 2 * DIM}
    cells = region.base_tensor.view(CHUNKS, -1)[chunk, :-4096].view(torch.bfloat16).view(2, *(sizes[a] for a in layout))
    cells = cells.permute(0, *(1 + layout.index(axis) for axis in "LBNHC")).reshape(2, LAYERS, BLOCKS * TOKENS, HEADS, -1)
    return [(cell[..., :DIM].clone(), cell[..., DIM:].clone()) for cell in cells]


@pytest.mark.parametrize("where", ["folder", "memory"])
@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_chunks_come_back_as_the_codec_has_them(tmp_path, region, layout, where):
    place = {"folder": str(tmp_path)} if where == "folder" else {"max_bytes": 10_000_000}
    made = tier(region, offloading(layout), codec="t4,t3", **place)
    wanted = []
    for chunk in (1, 2):
        parts = sides(region, layout, chunk)
        wanted.append([tuple(torch.zeros_like(side) for side in part) for part in parts])
        decode(Format("t4,t3").encode(parts), wanted[-1])
    assert look(made, keys(2)) == [LookupResult.MISS] * 2
    stored = run(made, made.submit_store, keys(2), [1, 2])
    assert stored.success and stored.transfer_bytes == 2 * 2 * made.format.size(AXES, torch.bfloat16)
    assert look(made, keys(3)) == [LookupResult.HIT] * 2 + [LookupResult.MISS]
    if where == "folder":
        made.shutdown()
        made = tier(region, offloading(layout), folder=str(tmp_path))
    before = region.base_tensor.clone().view(CHUNKS, -1)
    assert run(made, made.submit_load, keys(2), [5, 6]).success
    after = region.base_tensor.view(CHUNKS, -1)
    assert torch.equal(before[[0, 1, 2, 3, 4, 7]], after[[0, 1, 2, 3, 4, 7]]) and (after[:, -4096:] == 1).all()
    for chunk, parts in zip((5, 6), wanted):
        for got, want in zip(sides(region, layout, chunk), parts):
            assert torch.equal(got[0].view(torch.int16), want[0].view(torch.int16))
            assert torch.equal(got[1].view(torch.int16), want[1].view(torch.int16))
    made.shutdown()


def test_damaged_and_missing_chunks_fail_and_are_misses_then(tmp_path, region):
    made = tier(region, folder=str(tmp_path))
    assert run(made, made.submit_store, keys(3), [0, 1, 2]).success
    victim = tmp_path / made._name(keys(3)[1])
    victim.write_bytes(victim.read_bytes()[:-7])
    before = region.base_tensor.clone().view(CHUNKS, -1)
    # The request has looked it up before it fails to load, and must not be told to load it again.
    assert look(made, keys(2)[1:], ends=False) == [LookupResult.HIT]
    result = run(made, made.submit_load, keys(4), [4, 5, 6, 7])
    assert made.lookup(keys(2)[1], CONTEXT) == LookupResult.MISS
    made.on_request_finished(CONTEXT)
    assert not result.success and result.successful_keys == (keys(3)[0], keys(3)[2])
    after = region.base_tensor.view(CHUNKS, -1)
    assert torch.equal(before[[5, 7]], after[[5, 7]])
    assert look(made, keys(2)[1:]) == [LookupResult.MISS]
    assert run(made, made.submit_store, keys(2), [0, 1]).success
    assert look(made, keys(2)[1:]) == [LookupResult.HIT]
    made.shutdown()


def test_only_chunks_that_begin_a_text_keep_exact_tokens(tmp_path, region):
    made, context = tier(region, folder=str(tmp_path)), ReqContext(req_id="other")
    for i, key in enumerate(keys(2)):
        context.set_offload_key_position(key, (i + 1) * BLOCKS * TOKENS)
        made.submit_store(TransferJob(i, [key], np.array([i]), False, context))
    made.drain_jobs()
    sizes = {result.job_id: result.transfer_bytes for result in made.get_finished_jobs()}
    assert sizes == {i: 2 * Format("t3", exact=exact).size(AXES, torch.bfloat16) for i, exact in enumerate((4, 0))}
    made.shutdown()


def test_a_chunk_that_cannot_be_stored_fails_its_job(tmp_path, region):
    made = tier(region, folder=str(tmp_path))
    region.base_tensor.view(CHUNKS, -1)[1, 100:102].view(torch.bfloat16)[0] = float("nan")
    result = run(made, made.submit_store, keys(2), [0, 1])
    assert not result.success
    assert look(made, keys(2)) == [LookupResult.HIT, LookupResult.MISS]
    made.shutdown()


def test_jobs_run_at_once_and_are_all_reported(tmp_path, region):
    made = tier(region, folder=str(tmp_path), threads=2)
    for job, key in enumerate(keys(CHUNKS)):
        made.submit_store(TransferJob(100 + job, [key], np.array([job]), False, CONTEXT))
    made.drain_jobs()
    assert {(result.job_id, result.success) for result in made.get_finished_jobs()} == {
        (100 + job, True) for job in range(CHUNKS)
    }
    made.shutdown()


def test_files_are_looked_up_outside_the_scheduler(tmp_path, region, monkeypatch):
    made, threads = tier(region, folder=str(tmp_path), locality="REMOTE"), set()
    assert made.locality.value == "REMOTE"
    has = made.store.has
    monkeypatch.setattr(made.store, "has", lambda name: threads.add(threading.current_thread()) or has(name))
    assert look(made, keys(2)) == [LookupResult.MISS] * 2
    assert threads and threading.current_thread() not in threads
    made.shutdown()
    with pytest.raises(tqkv.TqkvError, match="locality 'near' is not valid: expected LOCAL or REMOTE"):
        tier(region, folder=str(tmp_path), locality="near")


def test_a_stopped_tier_lets_go_of_the_memory_of_the_primary_tier(tmp_path, region, caplog):
    made = tier(region, folder=str(tmp_path))
    assert run(made, made.submit_store, keys(1), [0]).success
    made.shutdown()
    region.cleanup()
    assert "Failed to close" not in caplog.text


@pytest.mark.parametrize(
    "spec, why",
    [
        (offloading("LHBNC"), "LHBNC"),
        (offloading(None), "layout None"),
        (offloading(groups=2), "2 groups"),
        (offloading(canonical=True), "canonical_layout"),
        (offloading(dtype="fp8_e4m3"), "fp8_e4m3"),
        (offloading(extra_bytes=64), "head_dim 64"),
        # Each worker has other tokens of a block, and as many bytes as with half of the heads.
        (offloading(dcp=2), "context parallelism"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path, region, spec, why):
    with pytest.raises(tqkv.TqkvError, match=why):
        tier(region, spec, folder=str(tmp_path))
    with pytest.raises(tqkv.TqkvError, match="expected one of them"):
        tier(region)


def test_chunks_of_codes_come_back_as_they_lie(tmp_path, region, monkeypatch):
    """With attention on codes. The dtype and the head dim of the model say nothing about them."""
    monkeypatch.setenv("TQKV_VLLM", "s4 hot=32")
    coded = functools.partial(SecondaryTierFactory.create_secondary_tier, primary_kv_view=region.create_kv_memoryview())
    config = {"type": "TqkvTier", "module_path": "tqkv.vllm", "folder": str(tmp_path)}
    made = coded(config, offloading_spec=offloading(groups=2, layout="LHBNC"))
    used = 2 * BLOCKS * LAYERS * HEADS * TOKENS * 2 * DIM * 2
    stored = run(made, made.submit_store, keys(2), [1, 2])
    assert stored.success and stored.transfer_bytes == 2 * (used + 12)
    before = region.base_tensor.clone().view(CHUNKS, -1)
    assert run(made, made.submit_load, keys(2), [5, 6]).success
    after = region.base_tensor.view(CHUNKS, -1)
    assert torch.equal(after[[5, 6]], before[[1, 2]]) and torch.equal(after[[0, 1, 2, 3, 4, 7]], before[[0, 1, 2, 3, 4, 7]])
    first, second = (tmp_path / made._name(key) for key in keys(2))
    whole = first.read_bytes()
    for bad in (whole[:-1], whole[:99] + bytes([whole[99] ^ 1]) + whole[100:], second.read_bytes(), b""):
        first.write_bytes(bad)
        assert not run(made, made.submit_load, keys(1), [3]).success and not first.exists()
    assert torch.equal(region.base_tensor.view(CHUNKS, -1), after)
    # Exact tokens are not in a block, and another codec is another block.
    names = []
    for policy in ("s4 hot=64", "s4", "t4", "s4 seed=7"):
        monkeypatch.setenv("TQKV_VLLM", policy)
        names.append(coded(config, offloading_spec=offloading(groups=2, layout="LHBNC"))._name(keys(1)[0]))
    assert names[0] == names[1] == made._name(keys(1)[0]) and len(set(names)) == 3
    # An engine without the back end of codes has blocks of other bytes.
    other = coded(config, offloading_spec=offloading(groups=2, layout="LHBNC", extra_bytes=-64))
    assert other._name(keys(1)[0]) not in names
    for given, why in [({"codec": "t4"}, "options of a codec"), ({"head_dim": DIM}, "options of a codec"), ({}, "canonical_layout")]:
        with pytest.raises(tqkv.TqkvError, match=why):
            coded(config | given, offloading_spec=offloading(canonical=not given))
    monkeypatch.delenv("TQKV_VLLM")
    with pytest.raises(tqkv.TqkvError, match="head_dim None is not valid"):
        coded(config, offloading_spec=offloading())
    made.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a tiny random Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    sizes = dict(vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    llama = LlamaForCausalLM(LlamaConfig(**sizes, head_dim=32, max_position_embeddings=512))
    # Sharper than initial weights, so that attention matters.
    for parameter in llama.parameters():
        parameter.data *= 2
    folder = tmp_path_factory.mktemp("llama")
    llama.save_pretrained(folder)
    return folder


def generated(*arguments):
    """What an engine in a process of its own generates, how many tokens of the prompt it took from the cache, and what it logged."""
    script = Path(__file__).with_name("vllm_engine.py")
    ran = subprocess.run([sys.executable, script, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    results = [line for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    assert ran.returncode == 0 and len(results) == 1, ran.stdout + ran.stderr
    return *json.loads(results[0].removeprefix("RESULT ")), ran.stdout + ran.stderr


def test_a_second_engine_takes_the_prefix_from_the_folder(tmp_path, model):
    """vLLM's engine, scheduler, connector and primary tier, on a CPU that says it is a GPU. `f16` codes each value alone: the attention
    for CPUs has its keys in an order of its own, which other codecs would mix."""
    ask = model, tmp_path / "folder", "f16", 400
    tokens, cached, _ = generated(*ask)
    files = sorted(path for path in (tmp_path / "folder").rglob("*") if path.is_file())
    assert cached == 0 and len(files) == 3
    assert generated(*ask)[:2] == (tokens, 3 * 128)
    # A damaged chunk is computed again, and the text is the same.
    whole = files[0].read_bytes()
    files[0].write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    again, cached, log = generated(*ask)
    assert again == tokens and cached < 3 * 128 and "load of chunk" in log
    # It was removed, and stored anew.
    assert generated(*ask)[:2] == (tokens, 3 * 128)
