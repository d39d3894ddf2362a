"""Runs a chat in llama-cpp-python with the KV cache in tqkv codes.

GGML_BACKEND_PATH names the library, TQKV_KV the codecs. The package must be a build with loadable back ends:

CMAKE_ARGS="-DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF" pip install llama-cpp-python
GGML_BACKEND_PATH=.../libggml_tqkv.so TQKV_KV=s4 python3 chat.py MODEL.gguf [PROMPT]
"""

import ctypes
import sys

import llama_cpp

# The package expects back ends inside of its library. These are loaded: the CPU's, then that of GGML_BACKEND_PATH.
host = llama_cpp.llama_cpp._lib
host.ggml_backend_load_all_from_path(str(llama_cpp.llama_cpp._base_path).encode())
host.ggml_backend_dev_by_name.restype = ctypes.c_void_p
if not host.ggml_backend_dev_by_name(b"TQKV"):
    sys.exit("the library is not loaded: set GGML_BACKEND_PATH")

model_path, *prompt = sys.argv[1:]
# All layers, so that the device holds the cache of every layer. Weights stay on the CPU. ggml's threads spin while
# they wait, so give no more threads than idle processors.
model = llama_cpp.Llama(
    model_path, n_gpu_layers=-1, n_ctx=1024, flash_attn=True, n_threads=1, n_threads_batch=1, verbose=False
)
message = {"role": "user", "content": prompt[0] if prompt else "Name three colours."}
answer = model.create_chat_completion([message], max_tokens=48, temperature=0)
print(answer["choices"][0]["message"]["content"])
model.close()
