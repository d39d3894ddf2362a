"""The rates of `speed.mjs` in a native build: `TQKV_LEVEL=avx2 python3 speed/speed.py ../../target/release/libtqkv_capi.so`."""

import ctypes
import math
import sys
import time
from array import array

HEADS, KV_HEADS, DIM, TOKENS = 32, 8, 128, 4096
tqkv = ctypes.CDLL(sys.argv[1])
tqkv.tqkv_last_error.restype = ctypes.c_char_p


def call(name, *args):
    if getattr(tqkv, name)(*(ctypes.c_size_t(x) if isinstance(x, int) else x for x in args)):
        raise SystemExit(tqkv.tqkv_last_error().decode())


def numbers(length):
    x = array("f", (math.sin(0.7 * i * i) + math.sin(1.3 * i) for i in range(length)))
    return (ctypes.c_float * length).from_buffer(x)


def least(work, runs=9):
    """The least seconds of several runs."""
    best = math.inf
    for _ in range(runs):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


call("tqkv_set_threads", 1)
x = numbers(2048 * DIM)
for name in ["s4", "t2"]:
    codec, size = ctypes.c_void_p(), ctypes.c_size_t()
    call("tqkv_codec_create", name.encode(), DIM, ctypes.byref(codec))
    call("tqkv_codec_block_bytes", codec, ctypes.byref(size))
    blocks = (ctypes.c_uint8 * (2048 * size.value))()
    seconds = least(lambda: call("tqkv_codec_encode", codec, x, len(x), blocks, len(blocks)))
    print(f"encode {name}: {2048 / seconds / 1e3:.1f} thousand vectors per second")
for kv in ["s4", "t4,t2"]:
    cache, spec = ctypes.c_void_p(), f"layers=1 heads={HEADS} kv-heads={KV_HEADS} head-dim={DIM} {kv}"
    call("tqkv_create", spec.encode(), ctypes.byref(cache))
    k, q, out = numbers(TOKENS * KV_HEADS * DIM), numbers(HEADS * DIM), (ctypes.c_float * (HEADS * DIM))()
    call("tqkv_append", cache, 0, 0, k, len(k), k, len(k))
    seconds = least(lambda: call("tqkv_attend", cache, 0, 0, q, len(q), 0, out, len(out)), 30)
    print(f"attend {kv}: {1e3 * seconds:.2f} ms")
