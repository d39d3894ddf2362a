"""The entry point of vLLM (`vllm.general_plugins`): attention on codes, without a fork.

    TQKV_VLLM="s4,t4 hot=64" vllm serve MODEL --attention-backend CUSTOM

`TQKV_VLLM` is a policy in the words of a cache: codecs, `hot=` and `sinks=`. Without it nothing of vLLM changes.
"""

from __future__ import annotations

import os

VARIABLE = "TQKV_VLLM"


def register() -> None:
    """vLLM calls this once in each of its processes, before it reads a model."""
    if not os.environ.get(VARIABLE):
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "tqkv.vllm_attention.TqkvBackend")
    # Chosen by `--kv-cache-dtype turboquant_4bit_nc` and the other types of that name.
    register_backend(AttentionBackendEnum.TURBOQUANT, "tqkv.vllm_attention.TurboQuantBackend")
