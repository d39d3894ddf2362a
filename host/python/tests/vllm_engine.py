"""An engine of vLLM with `TqkvTier`, for `test_vllm.py`. Prints the tokens it generates, and how many of the prompt it did not compute.

    python vllm_engine.py MODEL FOLDER CODEC TOKENS

vLLM offloads from GPUs only. Its CPU platform is made to say that it is one, and copies are done at once. Engine, scheduler, connector,
primary tier, region and `TqkvTier` are as they are.
"""

import contextlib
import ctypes
import json
import os
import sys

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import torch
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu import gpu_worker, host_register, spec

CHUNK = 128


class Event:
    """Everything before it is done: copies are not deferred."""

    def __init__(self, **options):
        pass

    def record(self, stream=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0


class Stream:
    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass


class Torch:
    Event = Event

    def __getattr__(self, name):
        return getattr(torch, name)


class Platform:
    Stream = current_stream = Stream

    def __getattr__(self, name):
        return getattr(current_platform, name)

    def is_cuda_alike(self):
        return True

    def is_rocm(self):
        return False

    def is_xpu(self):
        return False

    def stream(self, stream):
        return contextlib.nullcontext()


def copy(sources, targets, sizes, is_src_access_order_any=False):
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist()):
        ctypes.memmove(target, source, size)


def pretend():
    for module in (gpu_worker, host_register, spec):
        module.current_platform = Platform()
    host_register.host_register = gpu_worker.host_register = lambda address, size: False
    gpu_worker._select_swap_blocks_fn = lambda *given: copy
    # The CPU's runner has put an event of its own into `torch`.
    gpu_worker.torch = Torch()
    handler = gpu_worker.SingleDirectionOffloadingHandler
    begin = handler.__init__

    def begins(self, *args, **options):
        """It asserts that blocks are on a GPU."""
        torch.Tensor.is_cuda = True
        try:
            begin(self, *args, **options)
        finally:
            del torch.Tensor.is_cuda

    handler.__init__ = begins


def main(model, folder, codec, tokens):
    pretend()
    tier = {"type": "TqkvTier", "module_path": "tqkv.vllm", "head_dim": 32, "codec": codec, "exact": 65535, "folder": folder}
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 64 << 20, "block_size": CHUNK, "secondary_tiers": [tier]}
    transfer = KVTransferConfig(kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra)
    engine = LLM(model, skip_tokenizer_init=True, dtype="float32", max_model_len=512, enforce_eager=True, seed=1, kv_transfer_config=transfer)
    prompt = {"prompt_token_ids": [1 + i * i % 199 for i in range(int(tokens))]}
    sampling = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
    [output] = engine.generate(prompt, sampling, use_tqdm=False)
    print("RESULT", json.dumps([list(output.outputs[0].token_ids), output.num_cached_tokens]), flush=True)
    engine.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
