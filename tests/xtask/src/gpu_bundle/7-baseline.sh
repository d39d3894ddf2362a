#!/usr/bin/env bash
# Attention of PyTorch over f16 rows, by the kernels that others tuned.
. ./common.sh
needs python3
python3 -c "import torch" 2>/dev/null || { echo "torch is not here: this step is not done" >&2; exit 3; }
python3 sdpa.py | tee "$OUT/sdpa.jsonl"
