"""Calls share their work among PyTorch's threads, so that they never compete with them for processors."""

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

# Rayon's pool has one thread, so others are those of PyTorch. Prints how many there are more after each call, and the sums of results.
PROGRAM = """
import os, numpy as np, torch, tqkv
draw = np.random.default_rng(0)
k, q = (draw.standard_normal((n, 8, 64)).astype(np.float32) for n in (4096, 2))
cache = tqkv.KvCache(num_layers=1, num_heads=16, num_kv_heads=8, head_dim=64, kv="s4")
torch.set_num_threads(1)
cache.append(0, k, k)
results = []
before = len(os.listdir("/proc/self/task"))
for threads in (1, 2, 3):
    torch.set_num_threads(threads)
    results.append(cache.attend(0, q.reshape(16, 64)))
    print(len(os.listdir("/proc/self/task")) - before)
assert all(np.array_equal(result, results[0]) for result in results)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's OpenMP has the function on Linux alone")
def test_work_runs_on_as_many_threads_as_pytorch_was_told():
    environment = os.environ | {"RAYON_NUM_THREADS": "1"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "1", "2"], done.stdout
