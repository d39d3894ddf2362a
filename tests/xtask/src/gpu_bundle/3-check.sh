#!/usr/bin/env bash
# All tests on the GPU; then codes, attention and times of all shapes.
. ./common.sh
./device --test-threads 1
./driver --test-threads 1
./tqkv gpu-check --codes --attend
./tqkv gpu-check --speed --json | tee "$OUT/speed.jsonl"
