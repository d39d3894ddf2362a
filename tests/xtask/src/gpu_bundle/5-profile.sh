#!/usr/bin/env bash
# Profiles attention, the merge and the encoder with Nsight Compute: pipes, stalls, memory.
. ./common.sh
needs ncu
for codec in s4 s2; do
    ncu --clock-control none --set full --launch-skip 20 --launch-count 8 --force-overwrite -o "$OUT/profile-$codec" \
        -k "regex:attend_tensor|attend_merge|encode_append" \
        ./tqkv gpu-check --speed --seconds 0.001 --shape 64x32768x8x4x128 --codec "$codec"
    ncu --import "$OUT/profile-$codec.ncu-rep" --page details > "$OUT/profile-$codec.txt"
    grep -E "attend|encode|Duration|Throughput|Registers|Occupancy" "$OUT/profile-$codec.txt" || true
done
