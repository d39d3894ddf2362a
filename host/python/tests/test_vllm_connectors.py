"""KV connectors of vLLM that carry blocks of codes, with its engine on a CPU. See `vllm_codes.py`."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed")

import tqkv
from test_vllm_attention import GREEDY, HERE, generated, layer_bytes, llama, pretending, prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("llama"), 2)


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    """A plug-in that pretends for a GPU."""
    return pretending(tmp_path_factory)


def engine(connector, **extra):
    """One request at a time, which takes all three blocks. So a prompt is not in the engine's own cache when it comes again."""
    transfer = {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}
    sizes = {"block_size": 64, "max_num_seqs": 1, "max_num_batched_tokens": 512, "max_model_len": 192, "num_gpu_blocks_override": 4}
    return sizes | {"kv_transfer_config": transfer}


ASKED = [prompt(140, 3), GREEDY | {"max_tokens": 20}]
"""A request whose first 128 tokens come from elsewhere."""

LEAVES_NONE = [prompt(165, 50), GREEDY | {"max_tokens": 20}]
"""A request whose last exact tokens are where `ASKED` has none."""

LEAVES_EXACT = [prompt(125, 40), GREEDY | {"max_tokens": 20}]
"""A request whose last exact tokens are where `ASKED` has its first tokens. Blocks are given away in the order in which they were freed, the
last one first."""

COMPUTED = 165 + 19 + 125 + 19
"""Tokens that an engine computes for these two."""


def shows_no_exact_tokens_of_others(got, first, computed):
    """From request `first` on: `LEAVES_NONE`, `ASKED`, `LEAVES_EXACT`, `ASKED`. Blocks of both `ASKED` were loaded, after others had left their exact
    tokens in the same place or elsewhere."""
    clean, dirty = got["tokens"][first + 1], got["tokens"][first + 3]
    assert clean == dirty, got
    assert got["counts"]["tokens"] == computed, got


# What a request of 140 tokens computes after 128 that were loaded.
AFTER_LOAD = 12 + 19


def test_a_second_engine_takes_blocks_and_writes_the_same_tokens(model, tmp_path):
    """Through the files of vLLM's example of a connector. The second engine answers as the first one does after a hit of its own cache, which has no
    exact tokens that the other lacks here."""
    requests = [[prompt(tokens, tokens), GREEDY | {"max_tokens": 6}] for tokens in (70, 140)]
    files = engine("ExampleConnector", shared_storage_path=str(tmp_path)) | {"num_gpu_blocks_override": 24}
    one, two = (generated(None, model, "s4,s3 hot=0 sinks=0", of, files, replay=False) for of in (requests * 2, requests))
    assert (one["cached"], two["cached"]) == ([0, 0, 64, 128], [64, 128])
    assert one["tokens"][2:] == two["tokens"]
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.safetensors")]
    # Two layers of each prompt. A header takes less than a block.
    assert sorted(size // layer_bytes(one) for size in sizes) == [1, 1, 2, 2], sizes


def test_loaded_blocks_show_no_exact_tokens_of_earlier_owners(model, tmp_path):
    files = engine("ExampleConnector", shared_storage_path=str(tmp_path))
    got = generated(None, model, "s4", [ASKED, LEAVES_NONE, ASKED, LEAVES_EXACT, ASKED], files, replay=False)
    assert got["cached"] == [0, 0, 128, 0, 128]
    shows_no_exact_tokens_of_others(got, 1, 140 + 19 + COMPUTED + 2 * AFTER_LOAD)


@pytest.mark.parametrize("spec", ["memory", "tqkv", "fs"])
def test_blocks_leave_for_main_memory_and_come_back(card, model, tmp_path, spec):
    """vLLM offloads from GPUs only, so this is its CPU that says that it is one."""
    tier = {"tqkv": {"type": "TqkvTier", "module_path": "tqkv.vllm", "folder": str(tmp_path)}, "fs": {"type": "fs", "root_dir": str(tmp_path)}}
    more = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [tier[spec]]} if spec in tier else {}
    offloading = engine("OffloadingConnector", cpu_bytes_to_use=64 << 20, **more)
    requests = [LEAVES_NONE, ASKED, LEAVES_EXACT, ASKED]
    got = generated(card, model, "s4", [ASKED, *requests], offloading, replay=False, offloads=True)
    assert got["cached"] == [0, 0, 128, 0, 128]
    shows_no_exact_tokens_of_others(got, 1, 140 + 19 + COMPUTED + 2 * AFTER_LOAD)
    if spec != "tqkv":
        return
    sizes = {path.stat().st_size for path in tmp_path.rglob("*.tqp")}
    # Codes of two layers and two heads in 64 tokens of 68 bytes.
    assert sizes == {12 + 2 * 2 * 64 * 68}
    again = generated(card, model, "s4", requests, offloading, replay=False, offloads=True)
    assert again["cached"] == [128, 128, 64, 128] and again["tokens"][1::2] == got["tokens"][2::2]


@contextlib.contextmanager
def stays(model, kv, requests, engine, env):
    """What an engine generates, which stays until the end of the block."""
    options = json.dumps({"requests": requests, "engine": engine, "replay": False, "stays": True})
    command = [sys.executable, HERE / "vllm_codes.py", model, options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"TQKV_VLLM": kv} | env) as process:
        try:
            yield json.loads(next(line for line in process.stdout if line.startswith("RESULT ")).removeprefix("RESULT "))
        finally:
            process.stdin.close()


def test_an_engine_prefills_for_another(model):
    """Two engines on a CPU. The first one keeps its blocks until the second one has read them. All 140 tokens of a prompt are loaded, of which the
    last one is computed again."""
    pytest.importorskip("nixl", reason="nixl is not installed")
    text, sampling = ASKED
    sizes = engine("NixlConnector")
    prefills = sampling | {"max_tokens": 1, "extra_args": {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}}
    ports = [{"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)} for port in free_ports(2)]
    with stays(model, "s4", [[text, prefills]] * 2, sizes | {"num_gpu_blocks_override": 9}, ports[0]) as one:
        asked = [[text, sampling | {"extra_args": {"kv_transfer_params": given}}] for given in one["transfer"]]
        two = generated(None, model, "s4", [LEAVES_NONE, asked[0], LEAVES_EXACT, asked[1]], sizes, replay=False, env=ports[1])
    shows_no_exact_tokens_of_others(two, 0, COMPUTED + 2 * (1 + 19))
    assert two["tokens"][1][0][0] == one["tokens"][0][0][0]


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for made in sockets:
            made.bind(("localhost", 0))
        return [made.getsockname()[1] for made in sockets]


def test_several_connectors_carry_codes_together(model, tmp_path):
    """A benchmark's connector takes no part, as its prompts are invented: what the files lack it fills with zeros."""
    files = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)}}
    both = engine("MultiConnector", connectors=[files, {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_both"}])
    alone = engine("ExampleConnector", shared_storage_path=str(tmp_path))
    one, two = (generated(None, model, "s4", [ASKED], of, replay=False) for of in (alone, alone))
    both = generated(None, model, "s4", [LEAVES_EXACT, ASKED], both, replay=False)
    assert (one["cached"], two["cached"], both["cached"]) == ([0], [128], [124, 128])
    assert both["tokens"][1:] == two["tokens"]
    assert both["counts"]["tokens"] == 1 + 19 + AFTER_LOAD


def transfer(connector, module=None, **extra):
    given = SimpleNamespace(kv_connector=connector, kv_connector_module_path=module, kv_connector_extra_config=extra)
    return SimpleNamespace(kv_transfer_config=given)


@pytest.mark.parametrize(
    "config, why",
    [
        (transfer("LMCacheConnectorV1"), "the KV connector LMCacheConnectorV1"),
        (transfer("LMCacheMPConnector"), "the KV connector LMCacheMPConnector"),
        (transfer("NixlConnector", "mine.connector"), "the KV connector NixlConnector of mine.connector"),
        (transfer("OffloadingConnector", canonical_layout=True), "the KV connector OffloadingConnector with canonical_layout"),
        (transfer("MultiConnector", connectors=[{"kv_connector": "NixlConnector"}, {"kv_connector": "FlexKVConnectorV1"}]), "FlexKVConnectorV1"),
        (transfer("MultiConnector", connectors=[{"kv_connector": "NixlConnector"}]), None),
        (transfer("OffloadingConnector", cpu_bytes_to_use=1), None),
        (transfer(None), None),
        (SimpleNamespace(kv_transfer_config=None), None),
        (None, None),
    ],
)
def test_what_carries_no_codes_is_refused_by_name(monkeypatch, config, why):
    monkeypatch.setenv("TQKV_VLLM", "s4")
    from tqkv import vllm_attention

    refused = vllm_attention.refused_connector(config)
    assert refused is None if why is None else refused.endswith(why)
    monkeypatch.setattr(vllm_attention, "get_current_vllm_config_or_none", lambda: config)
    assert vllm_attention.TqkvBackend.supports_kv_connector() == (why is None)
    if why:
        monkeypatch.setattr(vllm_attention, "get_current_vllm_config", lambda: config)
        with pytest.raises(tqkv.TqkvError, match=f"{why} is not valid: expected blocks copied as they lie, by ExampleConnector, OffloadingConnector"):
            vllm_attention.TqkvImpl(4, 64, 0.125, 2)


def test_each_connector_of_vllm_is_known():
    """A version of vLLM with another one must be read first."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from tqkv.vllm_connectors import CONNECTORS

    others = {"ExampleHiddenStatesConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "NixlPushConnector", "HiSparseConnector"}
    others |= {"MoRIIOConnector", "MooncakeConnector", "MooncakeStoreConnector", "FlexKVConnectorV1", "SimpleCPUOffloadConnector", "HF3FSKVConnector"}
    assert set(KVConnectorFactory._registry) == others | set(CONNECTORS)


def builder(layers, owner):
    units = SimpleNamespace(owner=torch.tensor(owner, dtype=torch.int32), used=torch.arange(1, len(owner) + 1, dtype=torch.int32))
    return SimpleNamespaceWithHash(layer_names=layers, units=units)


class SimpleNamespaceWithHash(SimpleNamespace):
    __hash__ = object.__hash__


def step(**given):
    return SimpleNamespace(**{"kv_connector_metadata": None, "kv_cache_block_copies": None} | given)


def test_copied_blocks_lose_their_exact_tokens(monkeypatch):
    """vLLM copies the last block of a prefix that ends within a block, in models with states. Blocks of the scheduler have 128 tokens here."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    from tqkv import vllm_connectors

    sizes = dict(block_size=128, num_kv_heads=2, head_size=64, dtype=torch.float32)
    specs = FullAttentionSpec(**sizes), SlidingWindowSpec(**sizes, sliding_window=100)
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=[f"layer.{i}"]) for i, spec in enumerate(specs)]
    # Units 16 to 23 are in block 2, and -1 is none.
    makes = [builder(["layer.0"], [15, 16, 23, 24, 7, -1]), builder(["layer.1"], [16, 31, 32, -1])]
    monkeypatch.setattr(vllm_connectors, "_builders", makes)
    vllm_connectors.forget_filled(groups, step(kv_cache_block_copies=[(5, 2)]))
    assert [made.units.owner.tolist() for made in makes] == [[15, -1, -1, 24, 7, -1], [-1, 31, 32, -1]]
    assert makes[0].units.used.tolist() == [1, 0, 0, 4, 5, 6]
    vllm_connectors.forget_filled(groups, step(kv_connector_metadata=object(), tqkv_loaded=[[0], [3]]))
    assert [made.units.owner.tolist() for made in makes] == [[15, -1, -1, 24, -1, -1], [-1, -1, 32, -1]]
    vllm_connectors.forget_filled(groups, step())
    with pytest.raises(tqkv.TqkvError, match="a KV connector that tqkv does not see is not valid"):
        vllm_connectors.forget_filled(groups, step(kv_connector_metadata=object()))


def test_the_scheduler_says_which_blocks_are_loaded():
    from tqkv import vllm_connectors

    class Connector:
        def get_num_new_matched_tokens(self, request, num_computed_tokens):
            return 64, True

        def update_state_after_alloc(self, request, blocks, num_external_tokens):
            self.allocated = num_external_tokens

        def build_connector_meta(self, scheduler_output):
            return "metadata"

    class Request:
        pass

    def allocate(connector, own, external, *groups):
        request = Request()
        connector.get_num_new_matched_tokens(request, own)
        blocks = [[SimpleNamespace(block_id=block, is_null=not block) for block in group] for group in groups]
        connector.update_state_after_alloc(request, SimpleNamespace(blocks=blocks), external)

    def built(connector):
        assert connector.build_connector_meta(output := SimpleNamespace()) == "metadata"
        return output.tqkv_loaded

    one, two = Connector(), Connector()
    vllm_connectors._tell(one, [64])
    allocate(one, 128, 64, [5, 6, 7, 8])
    allocate(one, 0, 64, [9])
    # Nothing is loaded for it.
    allocate(one, 64, 0, [10, 11])
    assert built(one) == [[7, 8, 9]] and built(one) == [[]] and one.allocated == 0
    vllm_connectors._tell(two, [64, 128])
    # Groups may have found unlike numbers of tokens.
    allocate(two, 128, 64, [5, 6, 7], [0, 4])
    assert built(two) == [[5, 6, 7], [4]]
