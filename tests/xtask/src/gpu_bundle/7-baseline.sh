#!/usr/bin/env bash
# Times PyTorch's attention over f16 rows, with kernels tuned by others.
. ./common.sh
needs python3
python3 -c "import torch" 2>/dev/null || { echo "torch is not here: this step is not done" >&2; exit 3; }
python3 sdpa.py | tee "$OUT/sdpa.jsonl"
