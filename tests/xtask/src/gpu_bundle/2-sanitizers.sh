#!/usr/bin/env bash
# Looks for accesses outside buffers, barriers that not all threads reach, and reads of unwritten memory.
. ./common.sh
needs compute-sanitizer
for tool in memcheck synccheck initcheck; do
    echo "== $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 1 ./device --test-threads 1 attention_and 2>&1 | tee "$OUT/$tool.txt"
done
