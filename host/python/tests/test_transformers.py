"""The cache in tiny, random models of Transformers on the CPU."""

import copy
import inspect
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tqkv
import transformers
from tqkv._tf_attention import tqkv_attention
from tqkv.transformers import TqkvCache, TqkvLayer
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    Qwen3Config,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SMALL = dict(
    vocab_size=211,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
)
CONFIGS = {
    "llama": lambda: LlamaConfig(**SMALL),
    "qwen3": lambda: Qwen3Config(**SMALL),
    # Two layers have a window, one sees all tokens.
    "gemma3": lambda: Gemma3TextConfig(
        **SMALL,
        sliding_window=16,
        query_pre_attn_scalar=48,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gemma2": lambda: Gemma2Config(
        **SMALL,
        sliding_window=16,
        # Logits are large, so that the cap has an effect.
        query_pre_attn_scalar=1,
        attn_logit_softcapping=0.2,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


def make(name):
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32, attn_implementation="eager")
    # Sharper than initial weights, so that attention matters.
    for parameter in model.parameters():
        parameter.data *= 1.5
    return model.eval()


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return make(request.param)


@pytest.fixture(scope="module")
def llama():
    return make("llama")


def prompt(rows=1, tokens=90, pads=()):
    ids = torch.randint(1, 211, (rows, tokens), generator=torch.Generator().manual_seed(5))
    seen = torch.ones_like(ids)
    for row, pad in enumerate(pads):
        ids[row, :pad], seen[row, :pad] = 0, 0
    return {"input_ids": ids, "attention_mask": seen}


def generate(model, cache, inputs=None, implementation="sdpa", **options):
    if model.config.model_type == "gemma2" and implementation == "sdpa":
        implementation = "eager"
    model.set_attn_implementation(implementation)
    options = {"max_new_tokens": 24, "do_sample": False, **options}
    return model.generate(**(inputs or prompt()), past_key_values=cache, **options)


def logits(model, cache, ids, implementation="eager", **options):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(ids, past_key_values=cache, **options).logits


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "tqkv"])
@pytest.mark.parametrize("pads", [(0,), (0, 23, 7)])
@pytest.mark.parametrize("kv", ["f16", "i8"])
def test_generation_is_that_of_the_default_cache(model, implementation, pads, kv):
    inputs = prompt(len(pads), pads=pads)
    expected = generate(model, DynamicCache(config=model.config), inputs, "eager")
    cache = TqkvCache(model.config, kv=kv)
    assert torch.equal(generate(model, cache, inputs, implementation), expected)
    full = [layer for layer in cache.layers if isinstance(layer, TqkvLayer)]
    assert full and all(len(layer.rows) == len(pads) for layer in full)
    assert cache.get_seq_length() == 113


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_codes_are_read_and_are_near(model, implementation):
    """Logits of the next token equal those of the default cache, except for the error of the codec."""
    ids = prompt(2, 400)["input_ids"]
    exact = logits(model, DynamicCache(config=model.config), ids)[:, -1]
    errors = {}
    for kv in ("f16", "i8", "t4", "t2"):
        cache = TqkvCache(model.config, kv=kv, hot=16)
        logits(model, cache, ids[:, :-1], implementation)
        found = logits(model, cache, ids[:, -1:], implementation)[:, -1]
        errors[kv] = ((found - exact).norm() / exact.norm()).item()
    assert errors["f16"] < 2e-3 and errors["i8"] < 0.02
    assert errors["f16"] < errors["i8"] < errors["t4"] < errors["t2"] < 0.5, errors
    stats = cache.stats()
    assert stats["tokens"] == 400 and stats["bytes"] > 0 and stats["ratio"] > 1.5


def test_chunks_of_a_prompt_change_nothing(model):
    ids = prompt(2, 200)["input_ids"]
    for implementation in ("eager", "tqkv"):
        whole, cut = TqkvCache(model.config, kv="f16"), TqkvCache(model.config, kv="f16")
        expected = logits(model, whole, ids, implementation)
        parts = [logits(model, cut, part, implementation) for part in ids.split([120, 75, 5], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_crop_is_starting_over(llama, implementation):
    ids = prompt(2, 120)["input_ids"]
    cropped, fresh = TqkvCache(llama.config, kv="f16"), TqkvCache(llama.config, kv="f16")
    logits(llama, cropped, ids, implementation)
    cropped.crop(-50)
    assert cropped.get_seq_length() == 70
    logits(llama, fresh, ids[:, :70], implementation)
    other = torch.flip(ids, [1])[:, :9]
    found, expected = (logits(llama, cache, other, implementation) for cache in (cropped, fresh))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    cropped.crop(-1000)
    assert cropped.get_seq_length() == 0
    # Crops back to the padding, into it, and to nothing. The result is the same as with a new cache.
    expected = logits(llama, DynamicCache(config=llama.config), other)
    for steps in ((-40, -80), (-115, -5)):
        padded = TqkvCache(llama.config, kv="f16")
        inputs = prompt(2, 120, (0, 10))
        logits(llama, padded, inputs["input_ids"], implementation, attention_mask=inputs["attention_mask"])
        for step in steps:
            padded.crop(step)
        torch.testing.assert_close(logits(llama, padded, other, implementation), expected, rtol=5e-3, atol=5e-3)
    with pytest.raises(tqkv.TqkvError, match=r"crop\(5\)"):
        cropped.crop(5)


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_rows_move_as_the_library_moves_them(llama, implementation):
    ids = prompt(3, 150)["input_ids"]
    moves = {
        "reorder_cache": (torch.tensor([2, 0, 2]), [2, 0, 2]),
        "batch_repeat_interleave": (2, [0, 0, 1, 1, 2, 2]),
        "batch_select_indices": (torch.tensor([1, 2]), [1, 2]),
    }
    for move, (argument, rows) in moves.items():
        moved, fresh = TqkvCache(llama.config, kv="t4,t3"), TqkvCache(llama.config, kv="t4,t3")
        logits(llama, moved, ids, implementation)
        getattr(moved, move)(argument)
        logits(llama, fresh, ids[rows], implementation)
        for token in range(3):
            # From here on each row has its own tokens.
            new = torch.arange(len(rows))[:, None] + 20 * token + 1
            found, expected = (logits(llama, cache, new, implementation) for cache in (moved, fresh))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, msg=move)
    chosen = TqkvCache(llama.config, kv="t4,t3")
    logits(llama, chosen, ids, implementation)
    chosen.batch_select_indices(torch.tensor([True, False, True]))
    assert [len(layer.rows) for layer in chosen.layers] == [2, 2, 2]


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_beams_and_assisted_generation(llama, implementation):
    inputs = prompt(2, pads=(0, 11))
    options = {"num_beams": 3, "max_new_tokens": 12}
    expected = generate(llama, DynamicCache(config=llama.config), inputs, "eager", **options)
    cache = TqkvCache(llama.config, kv="f16")
    assert torch.equal(generate(llama, cache, inputs, implementation, **options), expected)
    looked_up = {"prompt_lookup_num_tokens": 4, "max_new_tokens": 40}
    inputs = prompt(1, 40)
    inputs["input_ids"][:, 20:] = inputs["input_ids"][:, :20]
    expected = generate(llama, DynamicCache(config=llama.config), inputs, "eager", max_new_tokens=40)
    cache = TqkvCache(llama.config, kv="f16")
    assert torch.equal(generate(llama, cache, inputs, implementation, **looked_up), expected)


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_a_smaller_model_assists(llama, implementation):
    inputs = prompt(1, 60)
    expected = generate(llama, DynamicCache(config=llama.config), inputs, "eager")
    torch.manual_seed(4)
    assistant = AutoModelForCausalLM.from_config(LlamaConfig(**{**SMALL, "num_hidden_layers": 1}), dtype=torch.float32).eval()
    cache = TqkvCache(llama.config, kv="f16")
    assert torch.equal(generate(llama, cache, inputs, implementation, assistant_model=assistant), expected)
    # Guesses that were wrong are gone, and the last token was not read yet.
    assert cache.get_seq_length() == expected.shape[1] - 1


def test_eight_thousand_tokens():
    torch.manual_seed(3)
    config = LlamaConfig(**{**SMALL, "num_hidden_layers": 2, "max_position_embeddings": 16384})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids = prompt(1, 8195)["input_ids"]
    ends = []
    for cache, implementation in ((DynamicCache(config=config), "sdpa"), (TqkvCache(config, kv="f16"), "tqkv"), (TqkvCache(config), "tqkv")):
        pieces = ids.split((4096, 4096, 1, 1, 1), 1)
        ends.append(torch.cat([logits(model, cache, piece, implementation)[:, -1] for piece in pieces]))
    torch.testing.assert_close(ends[1], ends[0], rtol=5e-3, atol=5e-3)
    assert (ends[2] - ends[0]).norm() < 0.1 * ends[0].norm()
    stats = cache.stats()
    # Four bits per value, of the 16 of f16.
    assert stats["tokens"] == 8195 and 3 < stats["ratio"] < 16 / 4 and stats["ratio"] == stats["f16_bytes"] / stats["bytes"]
    assert stats["plain_bytes"] == 2 * stats["f16_bytes"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_ratio_is_to_f16_whatever_the_model_has(dtype):
    model = make("llama").to(dtype)
    caches = {tokens: TqkvCache(model.config, kv="t4,t3") for tokens in (0, 48, 2000)}
    for tokens, cache in caches.items():
        if tokens:
            logits(model, cache, prompt(1, tokens)["input_ids"], "tqkv")
    ratios = {tokens: cache.stats()["ratio"] for tokens, cache in caches.items()}
    # 48 tokens are in the window, which is f16.
    assert ratios[0] == ratios[48] == 1.0
    assert 2.5 < ratios[2000] < 16 / 4


@pytest.mark.parametrize("kv", ["compact", "balanced", "near-lossless", "tiered", "compact hot=16 last:i8"])
def test_presets_are_those_of_a_cache(llama, kv):
    cache = TqkvCache(llama.config, kv=kv)
    logits(llama, cache, prompt(1, 200)["input_ids"], "tqkv")
    wanted = tqkv.KvCache(3, 4, 2, 32, kv).layer_codecs
    assert [layer.rows[0].layer_codecs for layer in cache.layers] == [[codecs] for codecs in wanted]
    assert cache.stats()["tokens"] == 200


def test_a_conversation_goes_on(llama):
    first, cache = prompt(), TqkvCache(llama.config, kv="f16")
    said = generate(llama, cache, first, "tqkv")
    longer = {"input_ids": torch.cat([said, prompt(1, 30)["input_ids"]], dim=1)}
    found = generate(llama, cache, longer, "tqkv")
    assert torch.equal(found, generate(llama, DynamicCache(config=llama.config), longer, "eager"))
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(generate(llama, cache, first, "tqkv"), said)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("implementation", ["sdpa", "tqkv"])
def test_half_precision(llama, dtype, implementation):
    model = make("llama").to(dtype)
    ids = prompt(2, 200)["input_ids"]
    expected = logits(model, DynamicCache(config=model.config), ids, "eager")
    cache = TqkvCache(model.config, kv="i8", hot=16)
    logits(model, cache, ids[:, :-1], implementation)
    found = logits(model, cache, ids[:, -1:], implementation)
    assert found.dtype == dtype
    assert (found - expected[:, -1:]).norm() < 0.05 * expected[:, -1:].norm()


def test_a_mask_that_is_not_causal_is_heeded(llama):
    """Padding in the middle, and a mask of four dimensions."""
    ids = prompt(2, 80)["input_ids"]
    seen = torch.ones_like(ids)
    seen[0, 30:40] = 0
    expected = logits(llama, DynamicCache(config=llama.config), ids, attention_mask=seen)
    cache = TqkvCache(llama.config, kv="f16")
    found = logits(llama, cache, ids, "tqkv", attention_mask=seen)
    torch.testing.assert_close(found[seen.bool()], expected[seen.bool()], rtol=5e-3, atol=5e-3)
    mask = torch.ones(80, 80, dtype=torch.bool).tril() & (torch.rand(80, 80) < 0.7)
    mask |= torch.eye(80, dtype=torch.bool)
    bias = torch.zeros(2, 1, 80, 80).masked_fill(~mask, torch.finfo(torch.float32).min)
    expected = logits(llama, DynamicCache(config=llama.config), ids, attention_mask=bias)
    found = logits(llama, TqkvCache(llama.config, kv="f16"), ids, "tqkv", attention_mask=mask.expand(2, 1, 80, 80))
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3)


def served(cache):
    """Calls of attention on codes, with decoded keys, and of prompts."""
    stats = cache.stats()
    return [stats[name] for name in ("calls_on_codes", "calls_decoded", "calls_of_prompts")]


def step_by_step(model, cache, ids, masks, implementation="tqkv"):
    """Logits of the last token of each row, a call for each mask, which ends where its tokens end."""
    model.set_attn_implementation(implementation)
    found, start = [], 0
    with torch.no_grad():
        for mask in masks:
            end = mask.shape[-1]
            out = model(ids[:, start:end], attention_mask=mask, past_key_values=cache, position_ids=torch.arange(start, end)[None])
            found.append(out.logits[:, -1])
            start = end
    return torch.stack(found)


def test_padding_longer_than_the_first_part_of_a_prompt_leaves_attention_on_codes(llama):
    """A row of which the first part of the prompt is padding alone has no token yet, and its padding goes on."""
    ids = prompt(2, 40)["input_ids"]
    seen = torch.ones_like(ids)
    seen[1, :11] = 0
    for parts in ([4, 8, 12], [10, 25], [16], [3, 6, 9, 12, 15]):
        masks = [seen[:, :end] for end in [*parts, *range(parts[-1] + 1, 40)]]
        exact, cache = DynamicCache(config=llama.config), TqkvCache(llama.config, "f16")
        expected = step_by_step(llama, exact, ids, masks, "eager")
        found = step_by_step(llama, cache, ids, masks)
        # What padding sees is nobody's.
        seen_last = torch.stack([mask[:, -1] for mask in masks]).bool()
        assert (found - expected)[seen_last].abs().max() < 0.01, parts
        codes, decoded, _ = served(cache)
        assert decoded == 0 and codes >= 3 * (39 - parts[-1]), parts
        assert [len(row) for row in cache.layers[0].rows] == [39, 28]


def test_padding_that_the_mask_of_a_prompt_did_not_tell_is_dropped_later(llama):
    """The mask of the prompt is a program's own, in four dimensions. After it the mask is that of the library."""
    ids = prompt(2, 60)["input_ids"]
    seen = torch.ones_like(ids)
    seen[1, :9] = 0
    own = (torch.ones(40, 40, dtype=torch.bool).tril() & seen[:, None, None, :40].bool()) | torch.eye(40, dtype=torch.bool)
    masks = [own.expand(2, 1, 40, 40), *(seen[:, :end] for end in range(41, 61))]
    exact, cache = DynamicCache(config=llama.config), TqkvCache(llama.config, "f16")
    expected = step_by_step(llama, exact, ids, masks, "sdpa")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = step_by_step(llama, cache, ids, masks)
    assert (found - expected).abs().max() < 0.01
    assert served(cache) == [3 * 20, 0, 3]
    assert [len(row) for row in cache.layers[0].rows] == [60, 51]


def test_steps_that_cannot_attend_on_codes_say_why_once_and_are_counted(llama):
    ids = prompt(2, 50)["input_ids"]
    hole = torch.ones_like(ids)
    hole[0, 20:23] = 0
    cache = TqkvCache(llama.config, "f16")
    with pytest.warns(UserWarning, match="because the mask is not causal attention after padding on the left") as said:
        step_by_step(llama, cache, ids, [hole[:, :end] for end in (30, 31, 32, 33)])
    assert [warning.category for warning in said].count(UserWarning) == 1 and served(cache) == [0, 9, 3]
    # What the prompt called padding is not there to be shown.
    shown, cache = torch.ones_like(ids), TqkvCache(llama.config, "f16")
    hidden = shown.clone()
    hidden[1, :5] = 0
    with pytest.warns(UserWarning, match="because the mask shows tokens that were padding in the prompt"):
        step_by_step(llama, cache, ids, [hidden[:, :30], shown[:, :31]])


def test_states_of_recurrent_layers_are_counted():
    config = Lfm2Config(**{**SMALL, "layer_types": ["conv", "full_attention", "conv"]})
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="tqkv").eval()
    cache = TqkvCache(config, "f16")
    with torch.no_grad():
        model(prompt()["input_ids"], past_key_values=cache)
    states = [x.nbytes for layer in cache.layers if not isinstance(layer, TqkvLayer) for x in layer.conv_states.values() if x is not None]
    stats = cache.stats()
    assert sum(states) > 0 and stats["compressed_layers"] == 1
    assert stats["bytes"] == sum(states) + sum(layer.bytes() for layer in cache.layers if isinstance(layer, TqkvLayer))


def test_the_implementation_serves_without_this_cache(llama):
    expected = generate(llama, DynamicCache(config=llama.config))
    assert torch.equal(generate(llama, DynamicCache(config=llama.config), implementation="tqkv"), expected)


SPARSE = dict(
    q_lora_rank=32, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
    n_group=1, topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1, n_shared_experts=1, index_n_heads=2, index_head_dim=32,
)


@pytest.mark.skipif("deepseek_v32" not in CONFIG_MAPPING, reason="this version of Transformers has no DeepSeek V3.2")
@pytest.mark.parametrize("chosen", [16, 1000])
def test_tokens_that_an_indexer_has_not_chosen_are_not_attended_to(chosen):
    torch.manual_seed(0)
    sizes = {name: size for name, size in SMALL.items() if name != "head_dim"} | {"num_key_value_heads": 4, "hidden_size": 128}
    config = CONFIG_MAPPING["deepseek_v32"](**sizes, **SPARSE, index_topk=chosen)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    ids = prompt(2, 140)["input_ids"]
    if transformers.__version__.startswith("5.16."):
        # This one leaves the choice to the function of attention.
        with pytest.raises(tqkv.TqkvError, match="argument indices of attention 'tqkv' is not valid"):
            logits(model, None, ids, "tqkv", use_cache=False)
        return
    expected = logits(model, None, ids, "sdpa", use_cache=False)
    assert torch.equal(logits(model, None, ids, "tqkv", use_cache=False), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Nothing is compressed: layers with an indexer keep more than keys and values.
        caches = {"sdpa": DynamicCache(config=config), "tqkv": TqkvCache(config, kv="f16")}
    # The indexer itself chooses otherwise in pieces, so the library's own cache says what is right.
    pieces = ids.split((100, 30, 9, 1), 1)
    ends = [torch.cat([logits(model, cache, piece, name) for piece in pieces], 1) for name, cache in caches.items()]
    assert torch.equal(*ends)


def attended(llama, filled, tokens=5, **arguments):
    """What "tqkv" and "sdpa" make of these arguments, on codes (or plain tensors), for the last of 40 tokens."""
    cache, (q, k, v) = TqkvCache(llama.config, kv="f16"), torch.randn(3, 1, 2, 40, 32, generator=torch.Generator().manual_seed(6))
    module = llama.model.layers[0].self_attn
    q = q.repeat(1, 2, 1, 1)[:, :, -tokens:]
    mask = torch.ones(40, 40, dtype=torch.bool).tril()[None, None, -tokens:]
    expected = sdpa_attention_forward(module, q, k, v, mask, scaling=0.3, **arguments)[0]
    if filled:
        llama.set_attn_implementation("sdpa")
        cache.update(k[:, :, :-tokens], v[:, :, :-tokens], 0)
        llama.set_attn_implementation("tqkv")
        k, v = cache.update(k[:, :, -tokens:], v[:, :, -tokens:], 0)
        mask.left_padding = [0]
    return tqkv_attention(module, q, k, v, mask, scaling=0.3, **arguments)[0], expected


@pytest.mark.parametrize("filled", [True, False])
def test_arguments_of_attention_are_heeded_or_refused_by_name(llama, filled):
    bias = torch.randn(1, 4, 5, 40, generator=torch.Generator().manual_seed(8))
    heeded = [{}, {"is_causal": False}, {"sliding_window": 4096, "position_ids": torch.arange(40)}, {"block_indices": None, "new": ()}]
    if "position_bias" in inspect.signature(sdpa_attention_forward).parameters:
        heeded.append({"position_bias": bias})
    for arguments in heeded:
        found, expected = attended(llama, filled, **arguments)
        torch.testing.assert_close(found, expected, rtol=5e-3, atol=5e-3, msg=str(arguments))
    some = torch.ones(3, dtype=torch.int32)
    for name, value in {"block_indices": some, "sinks": some, "output_attentions": True, "cu_seq_lens_q": some}.items():
        with pytest.raises(tqkv.TqkvError, match=f"argument {name} of attention 'tqkv' is not valid, .* expected attn_implementation 'sdpa'"):
            attended(llama, filled, **{name: value})


def test_arguments_of_a_cache_are_known_or_refused_by_name(llama):
    cache, (k, v) = TqkvCache(llama.config), torch.ones(2, 1, 2, 3, 32)
    llama.set_attn_implementation("sdpa")
    for arguments in ({}, {"kwargs": {"position_ids": 1}}, {"cache_kwargs": {"sin": 1}}, {"slots": None}):
        cache.update(k, v, 0, **arguments)
    with pytest.raises(tqkv.TqkvError, match="argument slots of TqkvLayer.update is not valid"):
        cache.update(k, v, 0, slots=torch.arange(3))
    assert cache.get_seq_length() == 12


@pytest.fixture(scope="module")
def gpt_oss():
    """A model with learned sinks that matter: larger than the logits of most tokens."""
    torch.manual_seed(3)
    small = {**SMALL, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 16}
    model = AutoModelForCausalLM.from_config(GptOssConfig(**small), attn_implementation="eager").eval()
    for layer in model.model.layers:
        layer.self_attn.sinks.data.copy_(torch.linspace(1, 4, len(layer.self_attn.sinks)))
    return model


@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_learned_sinks_are_attended_to(gpt_oss, implementation, tmp_path):
    config = gpt_oss.config
    expected = generate(gpt_oss, DynamicCache(config=config), implementation="eager")
    assert torch.equal(generate(gpt_oss, TqkvCache(config, kv="f16"), implementation=implementation), expected)
    ids = prompt(2, 120)["input_ids"]
    pieces = ids.split((90, 1, 4, 1, 12, 12), 1)
    exact, cache = DynamicCache(config=config), TqkvCache(config, kv="f16")
    for i, piece in enumerate(pieces):
        if i == 3:
            cache.save(tmp_path / "cache.tqt")
            cache = TqkvCache(config, kv="f16")
            cache.restore_from(tmp_path / "cache.tqt")
        cache = cache.fork()
        found = logits(gpt_oss, cache, piece, implementation)
        torch.testing.assert_close(found, logits(gpt_oss, exact, piece, "eager"), rtol=5e-3, atol=5e-3)
    rows = [layer for layer in cache.layers if isinstance(layer, TqkvLayer)]
    assert rows and all((layer.sinks is not None) == (implementation == "tqkv") for layer in rows)


def test_sinks_that_came_late_or_changed_are_heeded(gpt_oss):
    """Rows with tokens keep the sinks that they have, and others are attended to with decoded keys."""
    ids = prompt(1, 60)["input_ids"]
    exact, cache = DynamicCache(config=gpt_oss.config), TqkvCache(gpt_oss.config, kv="f16")
    first = gpt_oss.model.layers[1].self_attn.sinks
    kept = first.detach().clone()
    try:
        for piece, implementation, factor in zip(ids.split((40, 1, 1, 18), 1), ("eager", "tqkv", "tqkv", "tqkv"), (1, 1, 2, 2)):
            first.data.copy_(kept * factor)
            found = logits(gpt_oss, cache, piece, implementation)
            torch.testing.assert_close(found, logits(gpt_oss, exact, piece, "eager"), rtol=5e-3, atol=5e-3)
    finally:
        first.data.copy_(kept)


@pytest.mark.skipif("deepseek_v3" not in CONFIG_MAPPING, reason="this version of Transformers has no DeepSeek V3")
def test_latent_vectors_are_compressed_and_decoded():
    torch.manual_seed(0)
    sizes = {name: size for name, size in SMALL.items() if name != "head_dim"} | {"num_key_value_heads": 4}
    experts = {name: size for name, size in SPARSE.items() if not name.startswith("index")}
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING["deepseek_v3"](**sizes, **experts), dtype=torch.float32).eval()
    ids = prompt(2, 140)["input_ids"]
    cache, exact = TqkvCache(model.config, kv="t4 hot=16"), DynamicCache(config=model.config)
    with pytest.warns(UserWarning, match="uses keys or values outside attention"):
        for piece in ids.split((100, 30, 9, 1), 1):
            found, expected = logits(model, cache, piece, "tqkv"), logits(model, exact, piece, "sdpa")
            assert (found - expected).norm() < 0.1 * expected.norm()
    assert cache.stats()["ratio"] > 1.5


@pytest.mark.parametrize("tokens", [1, 4, 8])
def test_gradients_are_those_of_the_default_cache(llama, tokens):
    ids = prompt(1, 94)["input_ids"]
    norms = []
    for implementation, cache in (("eager", DynamicCache(config=llama.config)), ("tqkv", TqkvCache(llama.config, kv="f16"))):
        logits(llama, cache, ids[:, :90], implementation)
        llama.zero_grad()
        llama(ids[:, 90 : 90 + tokens], past_key_values=cache).logits.square().mean().backward()
        attention = [layer.self_attn for layer in llama.model.layers]
        weights = [getattr(one, name).weight for one in attention for name in ("q_proj", "k_proj", "v_proj")]
        norms.append(torch.stack([weight.grad.norm() for weight in weights]))
    llama.zero_grad()
    assert (norms[0] > 0).all()
    torch.testing.assert_close(norms[1], norms[0], rtol=2e-2, atol=1e-5)


def alone(program):
    """What a program writes last to its standard error, in a process of its own."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    return ran.returncode, ran.stderr


@pytest.fixture
def compiled():
    """What compiles a model, each step as one graph. The counts are of these graphs."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield lambda model, fullgraph=True: torch.compile(model, backend="eager", fullgraph=fullgraph)
    torch.compiler.reset()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("pads", [(), (0, 23, 7)])
def test_a_compiled_model_attends_on_codes_in_one_graph(model, pads, compiled):
    inputs = prompt(len(pads) or 1, 54, pads)
    ids, seen = inputs["input_ids"], inputs["attention_mask"]

    def steps(step):
        cache, found, end = TqkvCache(model.config, kv="s4", hot=8), [], 0
        for tokens in (39, 5, *[1] * 10):
            end += tokens
            mask = {"attention_mask": seen[:, :end]} if pads else {}
            found.append(logits(step, cache, ids[:, end - tokens : end], "tqkv", **mask))
        return torch.cat(found, 1), cache.stats()

    expected = steps(model)
    whole, made = compiled(model), []
    for _ in range(3):
        found = steps(whole)
        # Sliding layers are the library's, whose own attention rounds otherwise in a graph.
        torch.testing.assert_close(found[0][seen.bool()], expected[0][seen.bool()], rtol=0, atol=1e-5)
        assert found[1] == expected[1]
        made.append(graphs())
    # For prompts, for several tokens and for one. A further cache needs no other.
    assert made[0] <= 4 and made[1] == made[2], made


def test_a_compiled_model_generates_and_its_cache_is_copied(llama, compiled):
    expected = generate(llama, TqkvCache(llama.config, kv="s4", hot=8), implementation="tqkv")
    step, llama.forward = llama.forward, compiled(llama.forward)
    try:
        cache = TqkvCache(llama.config, kv="s4", hot=8)
        assert torch.equal(generate(llama, cache, implementation="tqkv"), expected)
        longer = {"input_ids": torch.cat([expected, expected[:, -1:]], 1)}
        copies = [cache, cache.fork(), pickle.loads(pickle.dumps(cache))]
        texts = [generate(llama, copied, longer, implementation="tqkv") for copied in copies]
    finally:
        llama.forward = step
    assert all(torch.equal(text, texts[0]) for text in texts) and len({len(copied.layers[0].rows[0]) for copied in copies}) == 1
    assert graphs() <= 5


def test_a_compiled_model_heeds_masks_and_decodes_for_other_attention(llama, compiled):
    ids = prompt(tokens=41)["input_ids"]
    # A hole in the mask, which codes do not have.
    seen = torch.ones_like(ids)
    seen[0, 7] = 0
    for implementation in ("tqkv", "sdpa"):
        expected, found = [], []
        for step, to in ((llama, expected), (compiled(llama, fullgraph=implementation == "tqkv"), found)):
            cache = TqkvCache(llama.config, kv="s4", hot=8)
            for at in (slice(0, 39), slice(39, 40), slice(40, 41)):
                to.append(logits(step, cache, ids[:, at], implementation, attention_mask=seen[:, : at.stop]))
        torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1))


def test_learned_sinks_of_a_compiled_model(gpt_oss, compiled):
    ids = prompt(tokens=42)["input_ids"]
    texts = []
    for step in (gpt_oss, compiled(gpt_oss)):
        cache = TqkvCache(gpt_oss.config, kv="s4", hot=8)
        texts.append(torch.cat([logits(step, cache, piece, "tqkv") for piece in ids.split((40, 1, 1), 1)], 1))
    assert torch.equal(*texts)


def test_what_a_compiled_model_cannot_be_is_refused_in_one_line(llama, compiled):
    ids = prompt(tokens=20)["input_ids"]
    llama.set_attn_implementation("tqkv")
    with pytest.raises(Exception, match="gradients of a compiled model are not valid with attn_implementation 'tqkv': expected torch.no_grad"):
        compiled(llama)(ids, past_key_values=TqkvCache(llama.config, kv="s4")).logits.sum().backward()
    layer = TqkvCache(llama.config, kv="s4").layers[0]
    rows = torch.ones(1, 2, 3, 32)

    def changes(keys):
        keys, values = layer.update(keys, rows)
        return tqkv_attention(llama, torch.ones(1, 4, 3, 32), keys * 2, values, None)[0]

    with torch.no_grad(), pytest.raises(Exception, match="computes with keys or values before it attends is not valid with 'tqkv': expected"):
        compiled(changes)(rows)

    def ignores(keys):
        return [layer.update(keys, rows)[0] for _ in range(2)]

    with torch.no_grad(), pytest.raises(Exception, match="does not attend to the keys and values of its cache is not valid with 'tqkv'"):
        compiled(ignores)(rows)


def test_an_older_version_is_refused_by_name():
    code, said = alone("import transformers; transformers.__version__ = '5.15.3'; import tqkv.transformers")
    assert code == 1 and said.endswith("ImportError: transformers 5.15.3 is not valid: expected 5.16 or newer\n")


COPIES = {
    "copy": lambda cache, path: copy.copy(cache),
    "deepcopy": lambda cache, path: copy.deepcopy(cache),
    "fork": lambda cache, path: cache.fork(),
    "pickle": lambda cache, path: pickle.loads(pickle.dumps(cache)),
    "file": lambda cache, path: through_file(cache, path),
}


def through_file(cache, path):
    cache.save(path)
    loaded = copy.deepcopy(cache)
    loaded.reset()
    loaded.restore_from(path)
    return loaded


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("implementation", ["eager", "tqkv"])
def test_copies_go_on_alone_with_the_same_bits(tmp_path, model, way, implementation):
    inputs = prompt(2, 120, (0, 13))
    ids, seen = inputs["input_ids"], inputs["attention_mask"]
    cache = TqkvCache(model.config, kv="t4,t3", hot=16)
    logits(model, cache, ids, implementation, attention_mask=seen)
    copied = COPIES[way](cache, tmp_path / "cache")
    both = []
    for one in (cache, copied):
        mask = seen
        steps = []
        for token in (17, 29):
            mask = torch.cat([mask, torch.ones(2, 1, dtype=mask.dtype)], 1)
            steps.append(logits(model, one, torch.full((2, 1), token), implementation, attention_mask=mask))
        both.append(torch.cat(steps, 1))
    assert torch.equal(*both)
    assert cache.get_seq_length() == copied.get_seq_length() == 122


def test_a_file_makes_the_cache_again_with_its_options(tmp_path, llama):
    cache = TqkvCache(llama.config, "t4,t3", hot=16, sinks=2)
    assert repr(cache) == "<TqkvCache kv='t4,t3', hot=16, sinks=2: 0 tokens in 0 bytes, ratio 1.00>"
    logits(llama, cache, prompt(1, 100)["input_ids"], "tqkv")
    cache.save(tmp_path / "cache")
    loaded = TqkvCache.load(tmp_path / "cache", llama.config)
    # A restored cache has no spare memory.
    of = "<TqkvCache kv='t4,t3', hot=16, sinks=2: 100 tokens in "
    assert repr(loaded).startswith(of) and repr(cache).startswith(of) and loaded.stats()["bytes"] <= cache.stats()["bytes"]
    token = torch.tensor([[17]])
    assert torch.equal(logits(llama, cache, token, "tqkv"), logits(llama, loaded, token, "tqkv"))
    with pytest.raises(tqkv.TqkvError, match="layers of another model"):
        TqkvCache.load(tmp_path / "cache", CONFIGS["gemma3"]())


def test_files_of_other_caches_and_damaged_ones_change_nothing(tmp_path, llama):
    cache, path = TqkvCache(llama.config, kv="t4,t3"), tmp_path / "cache"
    logits(llama, cache, prompt(1, 100)["input_ids"], "tqkv")
    cache.save(path)
    whole = path.read_bytes()
    assert list(tmp_path.iterdir()) == [path]
    other = TqkvCache(llama.config, kv="s4")
    logits(llama, other, prompt(1, 7)["input_ids"], "tqkv")
    gemma = TqkvCache(CONFIGS["gemma3"](), kv="t4,t3")
    for target, why in ((other, "spec|codec|t4"), (gemma, "layers of another model")):
        with pytest.raises(tqkv.TqkvError, match=why):
            target.restore_from(path)
    assert other.get_seq_length() == 7 and gemma.get_seq_length() == 0
    for damaged in (whole[:-1], b"", whole[:200] + b"\xff" + whole[201:], b"x" + whole[1:]):
        path.write_bytes(damaged)
        with pytest.raises(tqkv.TqkvError, match="expected one of TqkvCache.save, undamaged"):
            cache.restore_from(path)
    assert cache.get_seq_length() == 100


def test_a_warning_says_that_attention_decodes_or_nothing_is_compressed(llama):
    ids = prompt(1, 40)["input_ids"]
    for implementation, warned in (("sdpa", True), ("tqkv", False)):
        cache = TqkvCache(llama.config)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            logits(llama, cache, ids, implementation)
            after_prompt = len(seen)
            for token in range(3):
                logits(llama, cache, ids[:, :1], implementation)
        # Once, however many layers and tokens there are.
        decodes = [index for index, one in enumerate(seen) if "attention decodes" in str(one.message)]
        assert len(decodes) == warned and all(index >= after_prompt for index in decodes)
    windows = Gemma3TextConfig(**SMALL, sliding_window=16, layer_types=["sliding_attention"] * 3)
    with pytest.warns(UserWarning, match="nothing is compressed"):
        stats = TqkvCache(windows).stats()
    assert (stats["compressed_layers"], stats["other_layers"]) == (0, 3)
    stats = TqkvCache(CONFIGS["gemma3"]()).stats()
    assert (stats["compressed_layers"], stats["other_layers"]) == (1, 2)


@pytest.fixture(scope="module")
def wide():
    """Heads that codes of quarters have."""
    torch.manual_seed(5)
    config = LlamaConfig(**{**SMALL, "head_dim": 64})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


def key_rows(cache):
    """Decoded keys of the layers that are compressed."""
    return [row.keys(0) for layer in cache.layers if isinstance(layer, TqkvLayer) for row in layer.rows]


def apart(one, other):
    """Mean squared difference of two arrays, in parts of their energy."""
    return float(((one - other) ** 2).sum() / (one**2).sum())


@pytest.mark.parametrize("kv", ["m2,t2 hot=0", "t2 map=pairs", "m3,t2 hot=16 tier=128:m2,t2"])
def test_a_prompt_teaches_maps_as_single_tokens_do(wide, kv):
    ids = prompt(1, 400)["input_ids"]
    whole, pieces, steps = (TqkvCache(wide.config, kv=kv) for _ in range(3))
    plain = TqkvCache(wide.config, kv=f"{kv.split(' map=')[0]} map=off")
    for cache in (whole, plain):
        logits(wide, cache, ids, "tqkv")
    for part in (ids[:, :100], ids[:, 100:]):
        logits(wide, pieces, part, "tqkv")
    for token in ids[0]:
        logits(wide, steps, token[None, None], "tqkv")
    # The first layer has the same keys and queries, but for rounding, in every way of computing.
    first, same, stepped, unmapped = (key_rows(cache)[0] for cache in (whole, pieces, steps, plain))
    assert whole.layers[0].rows[0].wanted_queries(0) == 0
    noise = apart(first, unmapped)
    assert noise > 0.01 and apart(first, same) < 0.5 * noise and apart(first, stepped) < 0.5 * noise


def test_queries_that_are_not_shown_leave_keys_in_one_width_and_say_so_once(wide):
    ids = prompt(2, 300)["input_ids"]
    quarters, plain = (TqkvCache(wide.config, kv=f"{key},t2 hot=0") for key in ("m2", "t2"))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for cache in (quarters, plain):
            for part in (ids[:, :280], ids[:, 280:]):
                logits(wide, cache, part, "sdpa")
    assert len([one for one in seen if "keys get no map" in str(one.message)]) == 1
    assert all(np.array_equal(one, other) for one, other in zip(key_rows(quarters), key_rows(plain)))


def test_what_cannot_be_is_refused_before_a_model_runs(llama):
    with pytest.raises(tqkv.TqkvError, match="'t9' is neither a preset"):
        TqkvCache(llama.config, kv="t9")
    with pytest.raises(tqkv.TqkvError, match="codecs of 1 layers are not valid: expected 3"):
        TqkvCache(llama.config, layers=["t4"])
    mixed = TqkvCache(llama.config, layers=["i8", "t4,t3", "f16"])
    assert [layer.options["layers"] for layer in mixed.layers] == [["i8"], ["t4,t3"], ["f16"]]
    ruled = TqkvCache(llama.config, kv="t4,t2 last:i8 hot=16")
    assert [layer.options["layers"] for layer in ruled.layers] == [["t4,t2"], ["t4,t2"], ["i8,i8"]]
    with pytest.raises(tqkv.TqkvError, match="warm= is not valid: expected"):
        TqkvCache(llama.config, warm=3)
    with pytest.raises(tqkv.TqkvError, match=r"map=full is not valid: expected map=auto\|off\|pairs"):
        TqkvCache(llama.config, kv="t2 map=full")
    with pytest.raises(tqkv.TqkvError, match="config of the type LlamaForCausalLM is not valid"):
        TqkvCache(llama)
    cache = TqkvCache(llama.config)
    logits(llama, cache, prompt(2)["input_ids"])
    with pytest.raises(tqkv.TqkvError, match="a batch of 3 is not valid: expected the 2 rows"):
        logits(llama, cache, prompt(3)["input_ids"])


def test_computations_on_new_tokens_get_those_of_all(llama):
    cache, exact, (first, then) = TqkvCache(llama.config, kv="f16"), DynamicCache(config=llama.config), torch.randn(2, 2, 1, 2, 9, 32)
    both = []
    for one in (exact, cache):
        llama.set_attn_implementation("sdpa")
        one.update(*first, 0)
        llama.set_attn_implementation("tqkv")
        both.append(one.update(*then, 0))
    for expected, handle in zip(*both):
        assert (handle.shape, handle.size(), handle.size(-2), handle.dim()) == (expected.shape, expected.shape, 18, 4)
        assert (handle.numel(), handle.dtype, handle.requires_grad, len(handle)) == (expected.numel(), expected.dtype, False, 1)
        torch.testing.assert_close(handle.mT, expected.mT, rtol=2e-3, atol=2e-3)
        torch.testing.assert_close(torch.cat([handle, handle + 1], -1), torch.cat([expected, expected + 1], -1), rtol=2e-3, atol=2e-3)
    assert len(cache.layers[0].rows[0]) == 18
