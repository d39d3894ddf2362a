"""A plug-in of vLLM for tests: its CPU platform chooses back ends as that for CUDA does, and `tqkv.paged` works on a fake driver that has the
memory of PyTorch's tensors. Everything else of vLLM is as it is."""

import ctypes
import os
import sys
import types

PLUGIN = "[vllm.general_plugins]\npretends = vllm_pretends:pretend\n"


def write(folder):
    """A package in a folder that declares the plug-in."""
    package = folder / "pretends-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: pretends\nVersion: 0\n")
    (package / "entry_points.txt").write_text(PLUGIN)


def pretend():
    map_tensors()
    choose_as_cuda()


def map_tensors():
    from test_gpu import Gpu

    from tqkv import paged

    gpu = Gpu(os.environ["TQKV_FAKE_CUDA"])

    def address(tensor):
        held = tensor.untyped_storage()
        if held.nbytes():
            gpu.driver.tqkv_fake_map(ctypes.c_size_t(held.data_ptr()), ctypes.c_size_t(held.nbytes()))
        return tensor.data_ptr()

    paged._is_main = lambda device: False
    paged._device = lambda tensor: (0, gpu.stream.value)
    paged._address = address


def choose_as_cuda():
    # The kernels of a build for CUDA, which the choice does not call.
    sys.modules.setdefault("vllm._C_stable_libtorch", types.ModuleType("vllm._C_stable_libtorch"))
    from vllm.platforms import cpu, cuda, interface
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    cuda_choice = cuda.CudaPlatformBase.get_attn_backend_cls.__func__

    class Card(cuda.CudaPlatformBase):
        @classmethod
        def get_device_capability(cls, device_id=0):
            return interface.DeviceCapability(9, 0)

    def choose(cls, selected_backend, attn_selector_config, num_heads=None):
        # What CUDA leaves to FlashAttention, which is not there. By its path, because the name is that of codes on a CPU.
        if selected_backend is None and attn_selector_config.kv_cache_dtype == "auto":
            return AttentionBackendEnum.CPU_ATTN.value
        return cuda_choice(Card, selected_backend, attn_selector_config, num_heads)

    cpu.CpuPlatform.get_attn_backend_cls = classmethod(choose)
    cpu.CpuPlatform.update_block_size_for_backend = classmethod(interface.Platform.update_block_size_for_backend.__func__)
