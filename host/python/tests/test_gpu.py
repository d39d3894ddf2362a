"""`GpuCache`: tensors on a GPU through DLPack, on a fake driver. No GPU is needed.

The package needs the feature `cuda`. `TQKV_FAKE_CUDA` must name the library that `cargo build -p tqkv-gpu-fake` makes.
"""

import ctypes
import os

import numpy as np
import pytest
import tqkv
from tqkv import _native

LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 64
FLOAT, BFLOAT, INT = 2, 4, 0
CPU, CUDA = 1, 2

needs_feature = pytest.mark.skipif(not hasattr(_native, "GpuCache"), reason="built without the feature cuda")


class DLTensor(ctypes.Structure):
    """`DLTensor`, with which `DLManagedTensor` begins. The capsule is never consumed, so there is no deleter."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    """A tensor of another library on a GPU."""

    def __init__(self, address, shape, code=FLOAT, bits=32, strides=None, device=(CUDA, 0), says=None, offset=0):
        axes = ctypes.c_int64 * len(shape)
        self.shape, self.strides = axes(*shape), strides and axes(*strides)
        self.says = says or device
        self.held = DLTensor(
            address, *device, len(shape), code, bits, 1, self.shape, self.strides, offset, None, None
        )
        self.name, self.streams = b"dltensor", []

    def __dlpack_device__(self):
        return self.says

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return new_capsule(ctypes.addressof(self.held), self.name, None)


class Gpu:
    """The fake driver: a stream and memory."""

    def __init__(self, path):
        # It has the driver's name, so code that looks for the driver finds it.
        self.driver = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        context, stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.stream = stream

    def call(self, name, *arguments):
        assert getattr(self.driver, name)(*arguments) == 0, name

    def memory(self, array):
        """The address of a copy of an array."""
        at, size = ctypes.c_uint64(), ctypes.c_size_t(array.nbytes)
        self.call("cuMemAllocAsync", ctypes.byref(at), size, self.stream)
        self.call("cuMemcpyHtoDAsync_v2", at, array.ctypes.data_as(ctypes.c_void_p), size, self.stream)
        return at.value

    def read(self, address, shape, dtype):
        out = np.empty(shape, dtype)
        to, size = out.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(out.nbytes)
        self.call("cuMemcpyDtoHAsync_v2", to, ctypes.c_uint64(address), size, self.stream)
        return out

    def cache(self, **options):
        given = dict(num_heads=HEADS, num_sequences=3, max_tokens=100, sinks=0, hot=0, stream=self.stream.value)
        return tqkv.GpuCache(LAYERS, num_kv_heads=KV_HEADS, head_dim=DIM, **{**given, **options})


@pytest.fixture(scope="module")
def gpu():
    path = os.environ.get("TQKV_FAKE_CUDA")
    if not path:
        pytest.skip("TQKV_FAKE_CUDA names no driver of paper")
    return Gpu(path)


def test_without_the_feature_the_package_says_how_to_get_it(monkeypatch):
    monkeypatch.delattr(_native, "GpuCache", raising=False)
    with pytest.raises(tqkv.TqkvError, match="expected a build with maturin build --features cuda"):
        tqkv.GpuCache(LAYERS, HEADS, KV_HEADS, DIM)


@needs_feature
@pytest.mark.parametrize("hot", [0, 1])
def test_attention_is_that_of_the_codes_and_of_exact_tokens(gpu, rng, hot):
    cache = gpu.cache(kv="s4,t3", hot=hot)
    keys, values = rng.standard_normal((2, 3, KV_HEADS, DIM)).astype(np.float16)
    queries = rng.standard_normal((2, HEADS, DIM), dtype=np.float32)
    k = Tensor(gpu.memory(keys), keys.shape, bits=16)
    v = Tensor(gpu.memory(np.concatenate([keys[:1], values])), values.shape, bits=16, offset=keys[:1].nbytes)
    q = Tensor(gpu.memory(queries), queries.shape)
    out = Tensor(gpu.memory(np.zeros_like(queries)), queries.shape, strides=(HEADS * DIM, DIM, 1))
    for layer in range(LAYERS):
        cache.append(layer, [1, 0, 1], k, v)
    assert k.streams == [gpu.stream.value] * LAYERS
    assert [cache.length(sequence) for sequence in range(4)] == [1, 2, 0, 0]
    cache.attend(1, [1, 0], q, out)
    got = gpu.read(out.held.data, queries.shape, np.float32)

    codecs = [tqkv.Codec("s4", DIM), tqkv.Codec("t3", DIM)]
    decoded = [c.decode(c.encode(x.astype(np.float32))) for c, x in zip(codecs, (keys, values))]
    for row, tokens in enumerate([[0, 2], [1]]):
        for head in range(HEADS):
            of_k, of_v = (x[tokens, head * KV_HEADS // HEADS].astype(np.float64) for x in decoded)
            if hot:
                of_k[-1], of_v[-1] = (x[tokens[-1], head * KV_HEADS // HEADS] for x in (keys, values))
            logits = of_k @ queries[row, head] / np.sqrt(DIM)
            weights = np.exp(logits - logits.max())
            assert np.abs(got[row, head] - weights @ of_v / weights.sum()).max() < (1e-3 if hot else 2e-4)

    # A step appends the same tokens again, then a fork of it is decoded.
    tokens = [2, 2, 2]
    cache.reserve(3)
    cache.begin_step(tokens)
    for layer in range(LAYERS):
        cache.append_step(layer, k, v)
        three = Tensor(gpu.memory(np.ones((3, HEADS, DIM), np.float32)), (3, HEADS, DIM))
        cache.attend_step(layer, three, three)
    cache.end_step()
    cache.truncate(0, 0)
    cache.fork(2, 0, 2)
    back = Tensor(gpu.memory(np.zeros((2, KV_HEADS, DIM), np.float32)), (2, KV_HEADS, DIM))
    for side, given, of_codes in ((cache.keys, keys, decoded[0]), (cache.values, values, decoded[1])):
        side(1, 0, back)
        got = gpu.read(back.held.data, (2, KV_HEADS, DIM), np.float32)
        assert np.array_equal(got[: 2 - hot], of_codes[: 2 - hot])
        assert not hot or np.abs(got[1] - given[1]).max() < 5e-3


@needs_feature
def test_tensors_that_cannot_be_read_are_refused_with_the_reason(gpu):
    cache = gpu.cache()
    shape = (1, KV_HEADS, DIM)
    good = Tensor(gpu.memory(np.zeros(shape, np.float32)), shape)
    at = good.held.data
    unnamed = Tensor(at, shape)
    unnamed.name = b"used_dltensor"

    class Silent:
        def __dlpack_device__(self):
            return CUDA, 0

        def __dlpack__(self, stream=None):
            return None

    for tensor, reason in [
        (np.zeros(shape, np.float32), "k in main memory is not valid: expected a tensor on CUDA device 0"),
        ([1.0], "k of the type list is not valid: expected a tensor on a GPU that speaks DLPack"),
        (Tensor(at, shape, device=(CUDA, 1)), "k on CUDA device 1 is not valid: expected a tensor on CUDA device 0"),
        (Tensor(at, shape, device=(CPU, 0), says=(CUDA, 0)), "k in main memory is not valid: expected a tensor on CUDA device 0"),
        (Tensor(at, shape, device=(8, 0)), "k on a device of DLPack's type 8 is not valid: expected"),
        (Tensor(at, shape, bits=64), "k of DLPack's type 2 of 64 bits with 1 lanes is not valid: expected float32, float16"),
        (Tensor(at, shape, code=INT), "k of DLPack's type 0 of 32 bits with 1 lanes is not valid: expected float32"),
        (Tensor(at, shape, code=BFLOAT), "k of DLPack's type 4 of 32 bits with 1 lanes is not valid: expected float32"),
        (Tensor(at, shape, strides=(KV_HEADS * DIM, 1, KV_HEADS)), "k in this memory order is not valid: expected C order"),
        (Tensor(at, (1, DIM, KV_HEADS)), "k of the shape [1, 64, 2] is not valid: expected [1, 2, 64]"),
        (Tensor(at, shape, offset=2), "k at this address is not valid: expected a multiple of 4 bytes"),
        (Tensor(at, (1, -2, DIM)), "k of the shape [1, -2, 64] is not valid"),
        (Tensor(at, (1 << 40, 1 << 40, DIM)), "is not valid: expected sizes"),
        (unnamed, "k: the capsule of a Tensor is not called 'dltensor'"),
        (Silent(), "k: __dlpack__ of a Silent returns no capsule"),
    ]:
        with pytest.raises(tqkv.TqkvError) as refused:
            cache.append(0, [0], tensor, good)
        assert reason in str(refused.value)
    # Axes of size one may have any stride. The default stream has a number of its own.
    cache.append(0, [0], Tensor(at, shape, strides=(7, DIM, 1)), Tensor(at, shape, code=BFLOAT, bits=16))
    assert cache.length(0) == 1
    for call in [lambda: cache.end_step(), lambda: cache.begin_step([5]), lambda: cache.fork(0, 9, 1)]:
        with pytest.raises(tqkv.TqkvError):
            call()


@needs_feature
def test_the_default_stream_works_and_the_current_device_stays(gpu, rng):
    keys = rng.standard_normal((1, KV_HEADS, DIM)).astype(np.float32)
    k = Tensor(gpu.memory(keys), keys.shape)
    queries = rng.standard_normal((1, HEADS, DIM), dtype=np.float32)
    q, out = (Tensor(gpu.memory(x), queries.shape) for x in (queries, np.zeros_like(queries)))
    first, other, current = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuStreamSynchronize", gpu.stream)
    gpu.call("cuCtxGetCurrent", ctypes.byref(first))
    gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(other), 1)
    gpu.call("cuCtxSetCurrent", other)

    def stays():
        gpu.call("cuCtxGetCurrent", ctypes.byref(current))
        assert current.value == other.value

    cache = gpu.cache(stream=0)
    stays()
    for layer in range(LAYERS):
        cache.append(layer, [1], k, k)
        stays()
    assert k.streams == [1] * 2 * LAYERS, "DLPack's number of the default stream"
    cache.attend(0, [1], q, out)
    stays()
    del cache
    stays()
    gpu.call("cuCtxSetCurrent", first)
    codec = tqkv.Codec("s4", DIM)
    decoded = codec.decode(codec.encode(keys[0]))
    got = gpu.read(out.held.data, queries.shape, np.float32)
    for head in range(HEADS):
        assert np.abs(got[0, head] - decoded[head * KV_HEADS // HEADS]).max() < 2e-4


@needs_feature
def test_what_a_cache_cannot_be_is_refused(gpu):
    for options, reason in [
        (dict(kv="s4,f16"), "codec f16 has no kernels; expected s2, s3, s4, i8, t2, t3, t4"),
        (dict(num_heads=3), "3 query heads do not divide among 2 KV heads"),
        (dict(device=7), "there is no CUDA device 7: the driver reports 3"),
        (dict(device=1), "stream belongs to another context"),
        (dict(max_tokens=1 << 20), "the device has no room for"),
    ]:
        with pytest.raises(tqkv.TqkvError, match=reason.replace("(", r"\(")):
            gpu.cache(**options)
