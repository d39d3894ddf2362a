#!/usr/bin/env bash
# Accesses outside buffers, barriers that not all threads reach, memory that nobody wrote.
. ./common.sh
needs compute-sanitizer
for tool in memcheck synccheck initcheck; do
    echo "== $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 1 ./device --test-threads 1 attention_and 2>&1 | tee "$OUT/$tool.txt"
done
