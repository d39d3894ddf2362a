#!/usr/bin/env bash
# Runs the driver and then the kernels for the first time: refused calls, the codes of every codec, a step.
. ./common.sh
needs nvidia-smi
nvidia-smi --query-gpu=name,driver_version,memory.free,clocks.max.sm,clocks.max.mem --format=csv | tee "$OUT/gpu.csv"
./device --test-threads 1 --nocapture refused_calls
./device --test-threads 1 --nocapture codes_are
./driver --test-threads 1 --nocapture steps_are
