#!/usr/bin/env bash
# Runs all tests on the GPU, then checks codes and attention and times all shapes.
. ./common.sh
./device --test-threads 1
./driver --test-threads 1
./tqkv gpu-check --codes --attend
./tqkv gpu-check --speed --json | tee "$OUT/speed.jsonl"
