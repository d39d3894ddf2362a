#!/usr/bin/env python3
"""Makes blocks of every number format of GGUF files that we read, with their values by the `gguf` package.

    pip install gguf==0.17.1 numpy
    python tests/reference/gguf_blocks.py > host/model/tests/golden/gguf_blocks.json
"""
import json
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

KINDS = "F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K".split()
# Places of the f16 scales and minima in a block; the rest may be any bytes.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def main():
    random, rows = np.random.default_rng(20261122), []
    for name in KINDS:
        kind = Kind[name]
        values, size = GGML_QUANT_SIZES[kind]
        if values == 1:
            x = random.normal(size=16).astype(np.float32)
            half = x.astype(np.float16).view(np.uint8) if name == "F16" else (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
            blocks = half.reshape(1, -1)
        else:
            blocks = random.integers(0, 256, size=(2, size), dtype=np.uint8)
            for at in HALVES[name]:
                blocks[:, at:at + 2] = random.normal(size=2).astype(np.float16).view(np.uint8).reshape(2, 2)
        out = dequantize(blocks, kind).astype(np.float32).ravel()
        rows.append({"kind": int(kind), "name": name, "bytes": blocks.tobytes().hex(), "values": [float(v) for v in out]})
    print("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]")


main()
