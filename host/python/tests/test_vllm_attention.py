"""vLLM's engine with attention on codes, on a CPU: with the kernels of main memory, as its server runs there, and with those of a GPU on a
driver of paper. See `vllm_codes.py` and `vllm_pretends.py`."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed")

import tqkv
import tqkv.paged
import vllm_pretends
from tqkv import _native

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("llama"), 2)


def llama(folder, layers, window=None, kinds=None, soft_cap=None):
    """A folder with a tiny random Llama, or a Mistral, whose tokens see a window, or a Gemma, of which only some layers have one."""
    from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, LlamaConfig, MistralConfig

    torch.manual_seed(3)
    sizes = dict(vocab_size=211, hidden_size=96, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    sizes |= dict(num_hidden_layers=layers, max_position_embeddings=512)
    if soft_cap:
        more = dict(attn_logit_softcapping=soft_cap, query_pre_attn_scalar=64)
        config = Gemma2Config(**sizes, **more, sliding_window=window, layer_types=kinds)
    elif kinds:
        config = Gemma3TextConfig(**sizes, sliding_window=window, layer_types=kinds, query_pre_attn_scalar=64)
    else:
        config = MistralConfig(**sizes, sliding_window=window) if window else LlamaConfig(**sizes)
    made = AutoModelForCausalLM.from_config(config)
    # Sharper than initial weights, so that attention matters.
    for name, parameter in made.named_parameters():
        parameter.data *= 10 if soft_cap and ("q_proj" in name or "k_proj" in name) else 2
    made.save_pretrained(folder)
    return folder


def pretending(tmp_path_factory):
    """A plug-in that pretends for a GPU."""
    if not hasattr(_native, "Paged"):
        pytest.skip("built without the feature cuda")
    if not os.environ.get("TQKV_FAKE_CUDA"):
        pytest.skip("TQKV_FAKE_CUDA names no driver of paper")
    folder = tmp_path_factory.mktemp("plugin")
    vllm_pretends.write(folder)
    return folder


@pytest.fixture(scope="module", params=["main memory", "GPU"])
def plugin(request, tmp_path_factory):
    """None for main memory, and a plug-in that pretends for a GPU."""
    return None if request.param == "main memory" else pretending(tmp_path_factory)


def generated(plugin, model, kv, requests, engine, exact="", env={}, **options):
    """What an engine in a process of its own generates."""
    chosen = {"attention_backend": "CUSTOM"} if plugin else {}
    options |= {"requests": requests, "engine": {"block_size": 64} | chosen | engine}
    paths = os.pathsep.join([*([str(plugin)] if plugin else []), str(HERE), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, HERE / "vllm_codes.py", model, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=1200,
        env=os.environ | {"TQKV_VLLM": kv, "PYTHONPATH": paths} | ({"TQKV_EXACT": exact} if exact else {}) | env,
    )
    results = [line for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    assert ran.returncode == 0 and len(results) == 1, ran.stdout + ran.stderr
    return json.loads(results[0].removeprefix("RESULT ")) | {"main": plugin is None}


def prompt(tokens, seed):
    return [1 + (seed * 7 + i * i + i // 3) % 199 for i in range(tokens)]


def close(got, usual=1e-3, most=0.01):
    """Nearly all logits are equal. Rounding may move a number across the border of two codes, which later tokens then see. In main memory
    queries and weights have 8 bits."""
    if got["main"]:
        usual, most = max(usual, 0.015), max(most, 0.03)
    apart = got["apart"]
    assert apart[len(apart) * 9 // 10] < usual and apart[-1] < most, apart


def written(got, requests=None):
    """Each token is the likeliest one of the step that was computed again, but for near draws in main memory."""
    tokens, reference = ([token for request in got[of][:requests] for one in request for token in one] for of in ("tokens", "reference"))
    equal = sum(a == b for a, b in zip(tokens, reference, strict=True))
    assert equal == len(tokens) or got["main"] and equal >= 0.97 * len(tokens), (tokens, reference)


def layer_bytes(got):
    """Bytes of 64 tokens of two KV heads with `s4,s3`."""
    if got["main"]:
        return tqkv.paged.Layout(4, 2, 64, "s4,s3").block_bytes("cpu")
    return 64 * 2 * (64 * 4 // 8 + 2 + 64 * 3 // 8 + 2)


GREEDY = {"temperature": 0, "max_tokens": 12}


def test_an_engine_writes_the_tokens_of_the_codes(plugin, model):
    prefix = prompt(130, 1)
    requests = [[prefix + prompt(3 + 7 * i, i), GREEDY] for i in range(6)]
    requests += [[prompt(tokens, 20 + tokens), GREEDY] for tokens in (1, 2, 30, 57, 60, 62, 63, 64, 65, 150)]
    greedy = len(requests)
    requests += [[prompt(tokens, tokens), {"n": 2, "temperature": 1.0, "max_tokens": 8}] for tokens in (70, 131)]
    engine = {"max_num_seqs": 6, "max_num_batched_tokens": 96, "num_gpu_blocks_override": 9}
    got = generated(plugin, model, "s4,s3", requests, engine)
    close(got)
    written(got, greedy)
    assert all(len(set(map(tuple, tokens))) == 2 for tokens in got["tokens"][greedy:])
    assert got["strides"] == [layer_bytes(got)] * 2 and got["block"] == 64
    assert max(got["cached"]) == 128 and min(got["cached"]) == 0
    for what in ("preempted", "decoded", "fresh prompts", "prompts after codes", "parts of prompts", "mixed steps", "steps with shared blocks"):
        assert got["counts"].get(what, 0) > 0, got["counts"]
    for what in ("exact of a decoded token", "exact of a prompt", "codes"):
        assert got["counts"].get(what, 0) > 1000, got["counts"]


def few():
    """Prompts that begin alike, are cut in two, and are one token long."""
    prompts = [prompt(tokens, tokens) for tokens in (1, 70, 33)]
    return [[tokens, GREEDY | {"max_tokens": 6}] for tokens in [*prompts, prompts[1] + prompt(9, 3), prompt(140, 2)]]


FEW = {"max_num_seqs": 6, "max_num_batched_tokens": 96, "num_gpu_blocks_override": 24}


def test_prompts_in_half_precision_go_to_flash_attention(plugin, model):
    """The function that stands for it checks its arguments."""
    got = generated(plugin, model, "i8,s4", few(), FEW | {"dtype": "float16"}, flash=True)
    close(got, 0.01, 0.05)
    assert got["counts"]["prompts after codes"] > 0 and got["counts"]["fresh prompts"] > 0


@pytest.mark.parametrize("words", ["hot=40 sinks=20", "hot=0", "hot=0 sinks=0", "sinks=0 hot=16"])
def test_a_policy_says_which_tokens_are_exact(plugin, model, words):
    got = generated(plugin, model, f"s4 {words}", few(), FEW)
    close(got)
    written(got)
    assert ("exact of a decoded token" in got["counts"]) == (words != "hot=0 sinks=0"), got["counts"]


@pytest.mark.parametrize("requests", ["0", "1"])
def test_what_has_no_row_is_attended_as_codes(plugin, model, requests):
    got = generated(plugin, model, "s4", few(), FEW, exact=requests)
    close(got)
    written(got)
    exact, codes = got["counts"].get("exact of a decoded token", 0), got["counts"]["codes"]
    assert exact == 0 if requests == "0" else 0 < exact < codes, got["counts"]


BOTH = ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(("kinds", "shared"), [(None, False), (BOTH, False), (BOTH, True)])
def test_a_sliding_window_reads_no_token_behind_it(plugin, tmp_path, kinds, shared):
    """Of a block half of which has left the window the other half is read. Blocks before it belong to others by then. Layers of both kinds may
    also share blocks."""
    requests = [[prompt(tokens, tokens), GREEDY | {"max_tokens": 40}] for tokens in (20, 90, 130, 250)]
    engine = FEW | {"disable_hybrid_kv_cache_manager": shared}
    got = generated(plugin, llama(tmp_path, 2, window=100, kinds=kinds), "s4", requests, engine)
    close(got)
    written(got)
    assert got["counts"]["codes"] > 1000 and got["counts"]["prompts after codes"] > 0


def test_logits_are_capped_in_prompts_and_in_decoded_tokens(plugin, tmp_path):
    if plugin is not None:
        pytest.skip("the kernels of a GPU have no soft cap")
    # Logits are a few units, so most feel it.
    model = llama(tmp_path, 2, window=100, kinds=BOTH, soft_cap=1.0)
    requests = [[prompt(tokens, tokens), GREEDY | {"max_tokens": 20}] for tokens in (20, 90, 130, 250)]
    got = generated(plugin, model, "s4", requests, FEW)
    close(got)
    written(got)
    assert got["counts"]["codes"] > 1000 and got["counts"]["prompts after codes"] > 0


@pytest.mark.parametrize(("requests", "flash"), [("", False), ("", True), ("0", False)])
def test_learned_sinks_take_weight_in_prompts_and_in_decoded_tokens(plugin, model, requests, flash):
    dtype = {"dtype": "float16"} if flash else {}
    got = generated(plugin, model, "s4", few(), FEW | dtype, exact=requests, flash=flash, sinks=[-1.0, 0.5, 2.0, 6.0])
    close(got, *((0.01, 0.05) if flash else ()))
    if not flash:
        written(got)


def test_a_declared_type_leaves_the_first_and_last_layers_as_they_are(plugin, tmp_path):
    if plugin is None:
        pytest.skip("the CPU platform of vLLM has no types of this name")
    engine = FEW | {"attention_backend": "auto", "block_size": None, "kv_cache_dtype": "turboquant_4bit_nc"}
    got = generated(plugin, llama(tmp_path, 6), "s4,s3", few(), engine, native=[0, 1, 4, 5])
    close(got)
    written(got)
    # Blocks are so long that those of all layers have the same bytes. The kernels see 64 tokens of them.
    assert got["strides"][2:4] == [layer_bytes(got)] * 2 and got["block"] > 64


DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3, "prompt_lookup_min": 1}}


@pytest.mark.parametrize(("words", "window"), [("", None), ("hot=0 sinks=0", None), ("hot=40 sinks=20", None), ("", 100)])
def test_drafted_tokens_change_no_text(plugin, model, tmp_path, words, window):
    """Prompts that repeat themselves, so that some drafts are accepted and others are not. Rows of a request begin new units of exact tokens,
    and overwrite what was rejected."""
    model = llama(tmp_path, 2, window=window) if window else model
    prompts = [prompt(20 + 9 * i, i % 4) + prompt(11 + i, i % 4) for i in range(20 if plugin is None else 4)]
    requests = [[tokens, {"temperature": 0, "max_tokens": 40}] for tokens in prompts]
    # A prompt that is cut, or found in a cache, is attended to as codes, and where depends on what else there is in a step.
    engine = {"max_num_seqs": 5, "max_num_batched_tokens": 2048, "num_gpu_blocks_override": 32, "enable_prefix_caching": False}
    plain, drafted = (generated(plugin, model, f"s4 {words}", requests, engine | more, replay=False) for more in ({}, DRAFTS))
    pairs = [(a, b) for one, two in zip(plain["tokens"], drafted["tokens"]) for a, b in zip(one[0], two[0], strict=True)]
    different = [one for one, two in zip(plain["tokens"], drafted["tokens"]) if one != two]
    # A near draw may fall otherwise in a batch of another size, and all that follows is another text then.
    assert len(different) <= len(prompts) // 10, [a == b for a, b in pairs]
    assert drafted["counts"]["drafted rows"] > 100 and drafted["counts"]["steps"] < plain["counts"]["steps"], (plain["counts"], drafted["counts"])
    assert plain["counts"]["drafted rows"] == 0


def test_ranks_divide_the_heads(plugin, model):
    """Workers in processes of their own, which load the plug-ins by themselves."""
    [one, two] = (
        generated(plugin, model, "s4", few(), FEW | {"tensor_parallel_size": ranks}, replay=False)["tokens"] for ranks in (1, 2)
    )
    assert one == two


BACKEND = dict(head_size=128, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=None, use_mla=False, has_sink=False)
BACKEND |= dict(use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, device_capability=(9, 0), attn_type="decoder")


@pytest.fixture
def attention(monkeypatch):
    monkeypatch.setenv("TQKV_VLLM", "s4")
    from tqkv import paged, vllm_attention

    if not hasattr(_native, "Paged"):
        pytest.skip("built without the feature cuda")
    monkeypatch.setattr(paged, "_is_main", lambda device: False)
    return vllm_attention


def invalid(backend, **given):
    from vllm.platforms.interface import DeviceCapability

    given = BACKEND | given
    return backend.validate_configuration(**given | {"device_capability": DeviceCapability(*given["device_capability"])})


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"head_size": 96}, "head dim 96 has no kernels; expected 64, 128, 256"),
        ({"use_mla": True}, "MLA not supported"),
        ({"attn_type": "encoder_only"}, "attention type encoder_only not supported"),
        ({"attn_type": "encoder_decoder"}, "attention type encoder_decoder not supported"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype not supported"),
        ({"block_size": 32}, "block_size not supported"),
        ({"use_dcp": True}, "DCP not supported"),
        ({"use_pcp": True}, "PCP not supported"),
        ({"use_non_causal": True}, "non-causal attention not supported"),
        ({"device_capability": (7, 5)}, "compute capability not supported"),
    ],
)
def test_vllm_refuses_what_the_back_end_does_not_serve(attention, given, reason):
    assert invalid(attention.TqkvBackend) == []
    assert invalid(attention.TqkvBackend, **given) == [reason]


def test_a_layer_with_more_than_attention_is_refused_by_name(attention, monkeypatch):
    config = SimpleNamespace(speculative_config=None, kv_transfer_config=None)
    monkeypatch.setattr(attention, "get_current_vllm_config", lambda: config)
    for given, reason in [
        ({"alibi_slopes": [1.0] * 4}, "ALiBi is not valid: expected causal attention of a decoder over its own tokens"),
        ({"logits_soft_cap": 30.0}, "a soft cap of 30.0 is not valid"),
        ({"kv_sharing_target_layer_name": "layers.0"}, "keys and values of the layer layers.0 is not valid"),
        ({"indexer": object()}, "argument indexer of vLLM's attention is not valid, because tqkv does not know it"),
    ]:
        with pytest.raises(tqkv.TqkvError) as refused:
            attention.TqkvImpl(4, 64, 0.125, 2, **given)
        assert reason in str(refused.value) and "\n" not in str(refused.value)
    config.model_config = SimpleNamespace(max_model_len=64, dtype=torch.float32, get_num_layers=lambda parallel: 2)
    config.cache_config = SimpleNamespace(kv_cache_memory_bytes=1 << 30)
    config.scheduler_config = SimpleNamespace(max_num_seqs=2)
    config.parallel_config = SimpleNamespace(use_ubatching=True)
    with pytest.raises(tqkv.TqkvError, match=r"a batch in parts \(enable_dbo\) is not valid with exact tokens: expected TQKV_EXACT=0"):
        attention.TqkvImpl(4, 64, 0.125, 2)
    monkeypatch.setenv("TQKV_EXACT", "0")
    assert attention.TqkvImpl(4, 64, 0.125, 2).units == 0


def in_f64(q, k, v, scale, window, sinks, soft_cap):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).double() for x in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    if soft_cap:
        logits = soft_cap * (logits / soft_cap).tanh()
    apart = len(k) - len(q) + torch.arange(len(q))[:, None] - torch.arange(len(k))
    logits = logits.masked_fill((apart < 0) | (apart >= (window or len(k))), -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.double()[:, None, None].expand(-1, len(q), 1)], -1)
    return torch.einsum("hqk,khd->qhd", logits.softmax(-1)[..., : len(k)], v)


@pytest.mark.parametrize("window", [None, 1, 16, 50, 1000])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("mask", [None, 300])
def test_attention_of_prompts_is_that_of_f64(attention, monkeypatch, window, has_sinks, soft_cap, mask):
    torch.manual_seed(5)
    if mask:
        # Most prompts are divided then.
        monkeypatch.setattr(attention, "MASK", mask)
    sinks = torch.randn(6) if has_sinks else None
    for queries, older in [(1, 0), (1, 5), (7, 0), (40, 33), (64, 200), (130, 1)]:
        q, k, v = (torch.randn(tokens, heads, 32) for tokens, heads in ((queries, 6), (queries + older, 2), (queries + older, 2)))
        given = (q, k, v, 0.3, window, sinks, soft_cap)
        assert (attention.attention(*given) - in_f64(*given)).abs().max() < 1e-5, (queries, older)


@pytest.mark.parametrize("kv, dim, held", [("s4", 128, 132), ("t4,t2", 128, 100), ("i8,s4", 64, 100), ("s2", 256, 132)])
def test_a_block_has_the_bytes_of_its_codes(attention, monkeypatch, kv, dim, held):
    from vllm.v1.kv_cache_interface import FullAttentionSpec, get_kv_quant_mode

    monkeypatch.setenv("TQKV_VLLM", kv)
    spec = FullAttentionSpec(block_size=128, num_kv_heads=8, head_size=dim, dtype=torch.bfloat16)
    assert attention.TqkvBackend.customize_spec(spec).page_size_bytes == 128 * 8 * held
    # vLLM leaves some layers as they are, and the others have the mode of the type.
    assert attention.TurboQuantBackend.customize_spec(spec) == spec
    coded = replace(spec, kv_quant_mode=get_kv_quant_mode("turboquant_4bit_nc"), dtype=torch.uint8)
    assert attention.TurboQuantBackend.customize_spec(coded).page_size_bytes == 128 * 8 * held


def test_codes_must_fit_in_the_type_that_was_declared(attention, monkeypatch):
    for kv, fits in [("s4", [True, False]), ("s3", [True, True]), ("i8", [False, False]), ("t4,t2", [True, True])]:
        monkeypatch.setenv("TQKV_VLLM", kv)
        for name, valid in zip(("turboquant_4bit_nc", "turboquant_3bit_nc"), fits):
            reasons = invalid(attention.TurboQuantBackend, kv_cache_dtype=name)
            assert (reasons == []) == valid and all(f"TQKV_VLLM={kv} takes" in reason for reason in reasons)
    assert invalid(attention.TurboQuantBackend) == ["kv_cache_dtype not supported"]
    monkeypatch.setenv("TQKV_VLLM", "s9")
    [reason] = invalid(attention.TqkvBackend)
    assert "s9" in reason
    for words in ("tier=256:s2", "select=2048", "last:i8", "map=pairs", "scale=0.5"):
        monkeypatch.setenv("TQKV_VLLM", f"s4 {words}")
        [reason] = invalid(attention.TqkvBackend)
        name = words.partition("=")[0].replace("last:i8", "layer-kv")
        assert f"{name}=" in reason and "is not valid in vLLM: expected some of kv=, hot=, sinks=, seed=" in reason
    monkeypatch.setenv("TQKV_VLLM", "s4 hot=40 sinks=0 seed=7 centring=off effort=best")
    assert invalid(attention.TqkvBackend) == []
    layout, window = attention._policy(4, 2, 64)
    assert (layout.seed, layout.effort, window.first, window.newest) == (7, "best", 0, 4)


def test_without_its_variable_the_plugin_changes_nothing(monkeypatch):
    from importlib.metadata import entry_points

    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    [entry] = entry_points(group="vllm.general_plugins", name="tqkv")
    back_ends = AttentionBackendEnum.CUSTOM, AttentionBackendEnum.TURBOQUANT, AttentionBackendEnum.CPU_ATTN
    monkeypatch.delenv("TQKV_VLLM", raising=False)
    entry.load()()
    assert not any(back_end.is_overridden() for back_end in back_ends)
    monkeypatch.setenv("TQKV_VLLM", "s4")
    entry.load()()
    assert [back_end.get_class().__name__ for back_end in back_ends] == ["TqkvBackend", "TurboQuantBackend", "TqkvBackend"]
    monkeypatch.setattr("vllm.__version__", "0.99.1")
    with pytest.warns(UserWarning, match="tested with vLLM 0.32, and this is 0.99.1"):
        entry.load()()
    for back_end in back_ends:
        back_end.clear_override()
