"""Tiny random models of many families in vLLM's engine on a CPU: with codes of 8 bits they choose tokens as with vLLM's own cache.

Each engine writes what the one with its own cache wrote, so that all logits can be compared. What stands for attention is ours, and the rest of a
model is vLLM's: layers with a state, experts, scales, learned sinks.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="vllm is not installed")

from test_vllm_attention import FEW, generated, prompt

SIZES = dict(vocab_size=211, hidden_size=96, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
SIZES |= dict(num_hidden_layers=4, max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2)
WINDOWS = dict(sliding_window=100, layer_types=["sliding_attention", "full_attention"] * 2)
STATES = dict(linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4)
STATES |= dict(layer_types=["linear_attention", "full_attention"] * 2)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64, shared_expert_intermediate_size=64)

FAMILIES = {
    "qwen3": {},
    "granite": dict(attention_multiplier=0.1, logits_scaling=2.0),
    "gemma3_text": WINDOWS | dict(query_pre_attn_scalar=64),
    "gpt_oss": WINDOWS | dict(num_local_experts=4, num_experts_per_tok=2),
    "falcon_h1": {},
    "qwen3_next": STATES | EXPERTS,
    "qwen3_5_text": STATES,
}
HALF = {"qwen3_next", "qwen3_5_text"}
"""Those whose states vLLM computes in bfloat16 only."""


def made(family, folder):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**SIZES | FAMILIES[family]))
    # Sharper than initial weights, so that attention matters.
    for parameter in model.parameters():
        parameter.data *= 2 if parameter.dim() > 1 else 1
    model.save_pretrained(folder)


def requests():
    prompts = [prompt(tokens, tokens) for tokens in (1, 20, 70, 33, 140, 250)]
    return [[tokens, {"temperature": 0, "max_tokens": 24}] for tokens in [*prompts, prompts[2] + prompt(9, 3)]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_chooses_tokens_as_with_its_own_cache(family, tmp_path):
    made(family, tmp_path)
    engine = FEW | {"num_gpu_blocks_override": None, "dtype": "bfloat16" if family in HALF else "float32"}
    own = generated(None, tmp_path, "", requests(), engine, logits=str(tmp_path / "own"))
    answers = [tokens for [tokens] in own["tokens"]]
    generated(None, tmp_path, "i8", requests(), engine, replay=False, answers=answers, logits=str(tmp_path / "codes"))
    [own, _], [codes, _] = (torch.load(tmp_path / of) for of in ("own", "codes"))
    assert own.keys() == codes.keys() == set(range(7))
    own, codes = (torch.cat([of[request] for request in range(7)]) for of in (own, codes))
    assert len(own) == len(codes) == 7 * 24
    apart = ((own - codes).abs().amax(1) / own.abs().max()).sort().values
    print(f"\n{family}: nine of ten logits differ by less than {apart[len(apart) * 9 // 10]:.4f} of the largest")
    # A router may choose another expert.
    assert apart[len(apart) * 9 // 10] < 0.03, apart
    assert (own.argmax(1) == codes.argmax(1)).float().mean() >= 0.95
