"""The entry point of vLLM (`vllm.general_plugins`): attention on codes, without a fork.

    TQKV_KV=s4,t4 vllm serve MODEL --attention-backend CUSTOM

`TQKV_KV` names the codecs of keys and values. Without it nothing of vLLM changes.
"""

from __future__ import annotations

import os

VARIABLE = "TQKV_KV"


def register() -> None:
    """vLLM calls this once in each of its processes, before it reads a model."""
    if not os.environ.get(VARIABLE):
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "tqkv.vllm_attention.TqkvBackend")
    # Chosen by `--kv-cache-dtype turboquant_4bit_nc` and the other types of that name.
    register_backend(AttentionBackendEnum.TURBOQUANT, "tqkv.vllm_attention.TurboQuantBackend")
