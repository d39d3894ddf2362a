#!/usr/bin/env bash
# Times attention with other register limits (more warps at once, or fewer spills), and with other parts and
# blocks.
. ./common.sh
shapes=64x32768x8x4x128,64x32768x8x1x128,64x32768x8x8x128,1x32768x8x4x128
: > "$OUT/tune.jsonl"
for limit in none 128 144 168 192; do
    # The limit follows the parameters of an entry.
    awk -v limit="$limit" '
        /^\.maxnreg/ { next }
        { print }
        /^\.visible \.entry attend_(tensor|trellis)_d128/ { inside = 1 }
        inside && /^\)/ { if (limit != "none") print ".maxnreg " limit; inside = 0 }
    ' sm_80.ptx > "$OUT/variant.ptx"
    echo "== registers: $limit"
    ./tqkv gpu-check --speed --seconds 0.2 --ptx "$OUT/variant.ptx" --shape "$shapes" --codec s4,s2,t4 --json |
        sed "s/^{/{\"limit\":\"$limit\",/" | tee -a "$OUT/tune.jsonl"
done
rm -f "$OUT/variant.ptx"
for cut in 512x1 171x4 86x4 57x4 16x4 8x4 4x4 3x4 2x4 3x2 3x1; do
    echo "== pages of a part x warps: $cut"
    ./tqkv gpu-check --speed --seconds 0.2 --cut "$cut" --shape "$shapes" --codec s4,s2,t4 --json |
        sed "s/^{/{\"cut\":\"$cut\",/" | tee -a "$OUT/tune.jsonl"
done
