#!/usr/bin/env python3
"""Makes a tiny random checkpoint of every architecture that the runner computes, with its logits by Hugging Face Transformers.

    pip install torch==2.15.0 transformers==5.23.0
    python tests/reference/architectures.py host/model/tests/golden

Weights are f16 numbers, and the arithmetic is f32. The logits are those of the checkpoint after it was written and read again.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB, TOKENS = 64, 24
COMMON = {
    "vocab_size": VOCAB, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1000.0}
SLIDING, FULL = "sliding_attention", "full_attention"
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 12, "num_key_value_heads": 4,
          "first_k_dense_replace": 1, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
          "topk_method": "greedy", "n_group": 1, "topk_group": 1}

# Folder: model type, and the differences from COMMON.
CASES = {
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0},
                               "num_key_value_heads": 1}),
    "llama-yarn": ("llama", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN | {"factor": 2.0, "beta_fast": 8.0, "beta_slow": 0.5},
                             "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
    "phi3": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
                      "head_dim": None, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 9}),
    "gemma2": ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0,
                          "final_logit_softcapping": 4.0}),
    "gemma3": ("gemma3_text", {"sliding_window": 8, "query_pre_attn_scalar": 24, "num_hidden_layers": 3,
                               "layer_types": [SLIDING, SLIDING, FULL],
                               "rope_parameters": {SLIDING: {"rope_type": "default", "rope_theta": 50.0},
                                                   FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}}}),
    "qwen3-moe": ("qwen3_moe", EXPERTS | {"num_hidden_layers": 3, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen3-moe-unnormalised": ("qwen3_moe", EXPERTS | {"decoder_sparse_step": 2, "norm_topk_prob": False}),
    "gpt-oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "swiglu_limit": 1.5,
                            "rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}),
    "deepseek-v2-lite": ("deepseek_v2", LATENT | {"q_lora_rank": None, "n_shared_experts": 2, "routed_scaling_factor": 1.0,
                         "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 1.0}}),
    "deepseek-v2": ("deepseek_v2", LATENT | {"q_lora_rank": 20, "n_shared_experts": 1, "routed_scaling_factor": 2.5}),
}


def paint(model, seed):
    """Weights with which every part has an effect: logits spread over several units."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in model.named_parameters():
            noise = torch.randn(values.shape, generator=random)
            if "norm" in name:
                # Some families add the 1 themselves.
                noise = values + noise * 0.2
            elif name.endswith("bias") or "sinks" in name:
                noise = noise * 0.5
            elif "embed_tokens" in name:
                noise = noise * 0.7
            else:
                # Experts of gpt-oss are [inputs, outputs]; all others are [outputs, inputs].
                inputs = values.shape[1] if "gpt_oss" in model.config.model_type and values.ndim == 3 else values.shape[-1]
                noise = noise * 1.2 / inputs ** 0.5
            values.copy_(noise.half())


def main():
    root = Path(sys.argv[1])
    for seed, (name, (kind, changes)) in enumerate(CASES.items()):
        fields = {key: value for key, value in (COMMON | changes).items() if value is not None or key.endswith(("_id", "rank"))}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields), dtype=torch.float32)
        paint(model, seed)
        folder = root / name
        model.half().save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokens = [(7 * i * i + 13 * i + seed) % VOCAB for i in range(TOKENS)]
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        rows = [[round(float(value), 5) for value in row] for row in logits]
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        (folder / "logits.json").write_text(f'{{"tokens":{json.dumps(tokens)},"logits":[\n{rows}\n]}}\n')
        print(f"{name}: spread {float(logits.std()):.2f}, largest {float(logits.abs().max()):.2f}", file=sys.stderr)


main()
