#!/usr/bin/env bash
# Times one sequence, short and long: few warps, many parts.
. ./common.sh
shapes=1x4096x8x4x128,1x32768x8x4x128,1x131072x8x4x128,1x32768x8x1x128,1x32768x8x8x128
./tqkv gpu-check --speed --shape "$shapes" --codec s4,s2,i8,t4 --json | tee "$OUT/one-sequence.jsonl"
