"""The entry point of vLLM (`vllm.general_plugins`): attention on codes, without a fork.

    TQKV_VLLM="s4,t4 hot=64" vllm serve MODEL --attention-backend CUSTOM                         # on a GPU
    TQKV_VLLM="s4,t4 hot=64" python -m vllm.entrypoints.openai.api_server --model MODEL          # on a CPU

`TQKV_VLLM` is a policy in the words of a cache: codecs, `hot=` and `sinks=`. Without it nothing of vLLM changes.
"""

from __future__ import annotations

import os
import warnings

VARIABLE = "TQKV_VLLM"

TESTED = "0.32"
"""Versions of vLLM with which the tests run. Its classes for back ends change with every version."""


def register() -> None:
    """vLLM calls this once in each of its processes, before it reads a model."""
    if not os.environ.get(VARIABLE):
        return
    import vllm
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from .vllm_connectors import watch_scheduler

    if not vllm.__version__.startswith(f"{TESTED}."):
        warnings.warn(f"attention on codes was tested with vLLM {TESTED}, and this is {vllm.__version__}", stacklevel=2)
    if current_platform.is_cpu():
        # The one back end that this platform chooses.
        register_backend(AttentionBackendEnum.CPU_ATTN, "tqkv.vllm_attention.TqkvBackend")
    register_backend(AttentionBackendEnum.CUSTOM, "tqkv.vllm_attention.TqkvBackend")
    # Chosen by `--kv-cache-dtype turboquant_4bit_nc` and the other types of that name.
    register_backend(AttentionBackendEnum.TURBOQUANT, "tqkv.vllm_attention.TurboQuantBackend")
    watch_scheduler()
