"""KIVI's recipe in NumPy, to be compared with tqkv's codecs:

    tqkv eval --kv t2 --kv tiny --kv "program=python3 examples/kivi.py"
    tqkv eval --kv s4 --kv "program=python3 examples/kivi.py --bits 4"

Keys are quantised per channel, in groups of 32 tokens, and values per token, in groups of 32 coordinates. Each group has a minimum and a
step in float16, as the paper (arXiv 2402.02750) describes it. The window of exact tokens is that of `hot=` and `sinks=`, so the codes
alone are compared.
"""

from __future__ import annotations

import argparse

import numpy as np

from tqkv.yardstick import serve

GROUP = 32


def uniform(x: np.ndarray, bits: int) -> tuple[np.ndarray, int]:
    """Quantises the groups along the last axis between their least and greatest number. Returns them, and their bytes."""
    least = x.min(-1, keepdims=True).astype("f2").astype("f4")
    step = ((x.max(-1, keepdims=True) - least) / (2**bits - 1)).astype("f2").astype("f4")
    codes = np.clip(np.rint((x - least) / np.where(step > 0, step, 1)), 0, 2**bits - 1)
    groups = x.size // x.shape[-1]
    return codes * step + least, x.size * bits // 8 + groups * 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=2)
    bits = parser.parse_args().bits

    def keys(x: np.ndarray) -> tuple[np.ndarray, int]:
        back, count = uniform(np.ascontiguousarray(x.T), bits)
        return back.T, count

    def values(x: np.ndarray) -> tuple[np.ndarray, int]:
        back, count = uniform(x.reshape(len(x), -1, min(GROUP, x.shape[1])), bits)
        return back.reshape(x.shape), count

    serve(keys, values)


if __name__ == "__main__":
    main()
