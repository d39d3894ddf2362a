"""llama.cpp: a graph of one FLASH_ATTN_EXT on the CPU's back end of its released libraries. The cache lies as llama.cpp's own does: the heads of
a token side by side. `LLAMA_CPP_LIBRARIES` names the folder of the libraries."""

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, Structure, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import task

FOLDER = Path(os.environ["LLAMA_CPP_LIBRARIES"])
# Numbers of the types in ggml.h.
TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}
F32, WIDTH = 0, task.KV_HEADS * task.DIM


class Params(Structure):
    _fields_ = [("size", c_size_t), ("memory", c_void_p), ("no_alloc", c_bool)]


base = ctypes.CDLL(str(FOLDER / "libggml-base.so"), ctypes.RTLD_GLOBAL)
host = ctypes.CDLL(str(next(path for path in FOLDER.glob("libggml.*so"))), ctypes.RTLD_GLOBAL)


def call(library, name, result, *kinds):
    function = getattr(library, name)
    function.restype, function.argtypes = result, kinds
    return function


P, N, Z = c_void_p, c_int64, c_size_t
init = call(base, "ggml_init", P, Params)
row_size = call(base, "ggml_row_size", Z, c_int, N)
new_tensor = call(base, "ggml_new_tensor_4d", P, P, c_int, N, N, N, N)
view = call(base, "ggml_view_4d", P, P, P, N, N, N, N, Z, Z, Z, Z)
permute = call(base, "ggml_permute", P, P, P, c_int, c_int, c_int, c_int)
flash = call(base, "ggml_flash_attn_ext", P, P, P, P, P, P, c_float, c_float, c_float)
new_graph = call(base, "ggml_new_graph", P, P)
expand = call(base, "ggml_build_forward_expand", None, P, P)
allocate = call(base, "ggml_backend_alloc_ctx_tensors", P, P, P)
put = call(base, "ggml_backend_tensor_set", None, P, P, Z, Z)
get = call(base, "ggml_backend_tensor_get", None, P, P, Z, Z)
compute = call(base, "ggml_backend_graph_compute", c_int, P, P)
quantize = call(base, "ggml_quantize_chunk", Z, c_int, POINTER(c_float), P, N, N, N, P)
start = call(base, "ggml_backend_dev_init", P, P, P)
registry = call(base, "ggml_backend_dev_backend_reg", P, P)
address = call(base, "ggml_backend_reg_get_proc_address", P, P, ctypes.c_char_p)
call(host, "ggml_backend_load_all_from_path", None, ctypes.c_char_p)(str(FOLDER).encode())
by_type = call(host, "ggml_backend_dev_by_type", P, c_int)


def coded(kind, rows):
    """Bytes of `[tokens, heads * dim]`."""
    if kind == "f16":
        return rows.astype(np.float16)
    rows = np.ascontiguousarray(rows, np.float32)
    codes = np.empty(len(rows) * row_size(TYPES[kind], WIDTH), np.uint8)
    quantize(TYPES[kind], rows.ctypes.data_as(POINTER(c_float)), codes.ctypes.data, 0, len(rows), WIDTH, None)
    return codes


def engine(kind, q, k, v, threads):
    device, number, tokens = by_type(0), TYPES[kind], k.shape[1]
    backend = start(device, None)
    CFUNCTYPE(None, P, c_int)(address(registry(device), b"ggml_backend_set_n_threads"))(backend, threads)
    context = init(Params(1 << 20, None, True))
    query = new_tensor(context, F32, task.DIM, 1, task.HEADS, 1)
    held = [new_tensor(context, number, WIDTH, tokens, 1, 1) for _ in (k, v)]
    token, head = row_size(number, WIDTH), row_size(number, task.DIM)
    whole = token * tokens
    heads = lambda tensor: view(context, tensor, task.DIM, task.KV_HEADS, tokens, 1, head, token, whole, 0)
    out = flash(context, query, *(permute(context, heads(tensor), 0, 2, 1, 3) for tensor in held), None, task.DIM**-0.5, 0, 0)
    graph = new_graph(context)
    expand(graph, out)
    assert allocate(context, backend), "no memory"
    for tensor, rows in zip(held, (k, v)):
        rows = coded(kind, rows.transpose(1, 0, 2).reshape(tokens, WIDTH))
        put(tensor, rows.ctypes.data, 0, rows.nbytes)
    put(query, np.ascontiguousarray(q).ctypes.data, 0, q.nbytes)
    result = np.empty((task.HEADS, task.DIM), np.float32)

    def step():
        assert compute(backend, graph) == 0
        get(out, result.ctypes.data, 0, result.nbytes)
        return result

    return step, 2 * head


task.main(engine)
