#!/usr/bin/env bash
# Runs every step of the first visit to a GPU, in at most 45 minutes. `run-all.sh short` runs what decides most, in ten minutes at most, and
# `run-all.sh STEP` one step alone.
# A step writes to the folder $OUT (default: out). A step that fails does not stop the others, except the first.
set -uo pipefail
cd "$(dirname "$0")" || exit 1
export OUT=${OUT:-out} TQKV_REQUIRE_GPU=1
# The folder of the driver in some containers.
export LD_LIBRARY_PATH="/usr/local/nvidia/lib64:${LD_LIBRARY_PATH:-}"
mkdir -p "$OUT" || exit 1

# Most seconds of all steps together.
if [[ ${1-} == short ]]; then TOTAL=${TOTAL:-560}; else TOTAL=${TOTAL:-2700}; fi
SHAPES=64x32768x8x1x128,64x32768x8x4x128,64x32768x8x8x128
ONE=1x4096x8x4x128,1x8192x8x4x128,1x32768x8x4x128,1x131072x8x4x128,1x32768x8x8x128
UNLIKE=63x1024+1x32768x8x4x128,63x1024+1x131072x8x4x128,16x1024+16x4096+16x8192+16x32768x8x4x128

# Status 3 says that a step needs something that is not here.
needs() {
    command -v "$1" >/dev/null || { echo "$1 is not here: this step is not done"; exit 3; }
}

# What matters of gpu-check's JSON rows of times.
times() {
    awk '
        function field(name) {
            return match($0, "\"" name "\":\"?[^,\"}]*") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) : "?"
        }
        function plain(text) { sub(/^"/, "", text); return text }
        /"row":"speed"/ {
            local_bytes = field("local_bytes") > 0 ? ", " field("local_bytes") " bytes of local memory" : ""
            printf "%-4s %-38s %9.1f us %5.1f %% of read %6.2f times f16 read%s\n", plain(field("codec")), plain(field("shape")),
                1e6 * field("p50"), 100 * field("read_share"), field("f16_read_ratio"), local_bytes
        }' "$1"
}

speed() {
    local file=$1
    shift
    ./tqkv gpu-check --speed --json "$@" > "$file"
    times "$file"
}

# Refused calls, the codes of every codec, and a step.
first() {
    if command -v nvidia-smi >/dev/null; then
        nvidia-smi --query-gpu=name,driver_version,memory.free,clocks.max.sm,clocks.max.mem --format=csv | tee "$OUT/gpu.csv" ||
            echo "nvidia-smi failed: going on without it"
    else
        echo "nvidia-smi is not here: going on without it"
    fi
    ./device --include-ignored --test-threads 1 --nocapture refused_calls
    ./device --include-ignored --test-threads 1 --nocapture codes_are
    ./driver --test-threads 1 --nocapture steps_are
}

batch() { speed "$OUT/batch.jsonl" --shape "$SHAPES" --codec s4,s2,i8; }

baseline() {
    needs python3
    python3 -c "import torch" 2>/dev/null || { echo "torch is not here: this step is not done"; exit 3; }
    python3 baselines.py | tee "$OUT/baselines.jsonl"
}

python() {
    needs python3
    python3 -c "import torch, pytest, tqkv.paged" 2>/dev/null || { echo "torch, pytest and tqkv are not here: this step is not done"; exit 3; }
    # Those of the fake driver are skipped.
    python3 -m pytest -q -p no:cacheprovider python
    python3 python/device_speed.py | tee "$OUT/device_speed.txt"
}

serve() {
    needs python3
    python3 -c "import torch, tqkv.paged" 2>/dev/null || { echo "torch and tqkv are not here: this step is not done"; exit 3; }
    python3 serve.py | tee "$OUT/serve.jsonl"
}

unlike() { speed "$OUT/unlike.jsonl" --shape "$UNLIKE" --codec s4,s2,i8,t4; }

one() { speed "$OUT/one-sequence.jsonl" --shape "$ONE" --codec s4,s2,i8,t4; }

tests() {
    ./device --include-ignored --test-threads 1
    # The others need the fake driver.
    ./driver --test-threads 1 --skip _on_paper
    ./tqkv gpu-check --codes --attend
}

shapes() { speed "$OUT/speed.jsonl"; }

# Pipes, stalls and memory of attention, the merge and the encoder.
profile() {
    needs ncu
    for codec in s4 s2; do
        ncu --clock-control none --set full --launch-skip 20 --launch-count 8 --force-overwrite -o "$OUT/profile-$codec" \
            -k "regex:attend_tensor|attend_merge|encode_append" \
            ./tqkv gpu-check --speed --seconds 0.001 --shape 64x32768x8x4x128 --codec "$codec"
        ncu --import "$OUT/profile-$codec.ncu-rep" --page details > "$OUT/profile-$codec.txt"
        grep -E "attend|encode|Duration|Throughput|Registers|Occupancy" "$OUT/profile-$codec.txt" || true
    done
}

# Accesses outside buffers, and reads of unwritten memory.
sanitize() {
    needs compute-sanitizer
    for tool in memcheck initcheck; do
        compute-sanitizer --tool "$tool" --error-exitcode 1 ./device --include-ignored --test-threads 1 attention_and 2>&1 | tee "$OUT/$tool.txt"
    done
}

# Other register limits (more warps at once, or fewer spills), then other parts and blocks.
tune() {
    : > "$OUT/tune.jsonl"
    for limit in none 128 144 168 192; do
        # The limit follows the parameters of an entry.
        awk -v limit="$limit" '
            /^\.visible \.entry attend_(tensor|trellis)_d128/ { inside = 1 }
            inside && /^\.(maxnreg|maxntid|minnctapersm) / { next }
            { print }
            inside && /^\)/ { if (limit != "none") print ".maxnreg " limit }
            inside && /^\{/ { inside = 0 }
        ' sm_80.ptx > "$OUT/variant.ptx"
        variant "limit" "$limit" --ptx "$OUT/variant.ptx"
    done
    rm -f "$OUT/variant.ptx"
    for cut in 171x4 57x4 16x4 8x4 4x4 2x4 3x2; do
        variant "cut" "$cut" --cut "$cut"
    done
}

# Kernels with another limit of registers, each next to that of today: so few registers that one more block is on a multiprocessor, and none,
# as eight heads had before.
registers() {
    : > "$OUT/tune.jsonl"
    local entry limit
    for entry in d128_r4=128 d128_r8=168 d128_r8=none d256_r4=168; do
        limit=${entry#*=} entry=${entry%=*}
        awk -v entry="$entry" -v limit="$limit" '
            index($0, ".visible .entry attend_tensor_" entry "(") { inside = 1 }
            inside && /^\.(maxnreg|maxntid|minnctapersm) / { next }
            { print }
            inside && /^\)/ && limit != "none" { print ".maxnreg " limit }
            inside && /^\{/ { inside = 0 }
        ' sm_80.ptx > "$OUT/variant.ptx"
        local shape=64x32768x8x${entry#*_r}x${entry%_r*} codecs=s4,s2
        shape=${shape/xd/x}
        # Without a limit only these two have other registers.
        [[ $limit == none ]] && codecs=s3,i8
        SHAPE=$shape CODECS=$codecs variant "$entry" today
        SHAPE=$shape CODECS=$codecs variant "$entry" "$limit" --ptx "$OUT/variant.ptx"
    done
    rm -f "$OUT/variant.ptx"
}

# Pages, exact rows, graphs and streams of the Python package.
card() {
    needs python3
    python3 -c "import torch, pytest, tqkv.paged" 2>/dev/null || { echo "torch, pytest and tqkv are not here: this step is not done"; exit 3; }
    python3 -m pytest -q -x -p no:cacheprovider python/test_paged.py python/test_gpu_torch.py python/test_transformers_device.py
}

quick() { speed "$OUT/quick.jsonl" --seconds 0.1 --codec s4,s2,t4,i8 --shape 64x32768x8x4x128,64x32768x8x8x128,16x8192x8x4x128,1x32768x8x4x128; }

tokens() {
    needs python3
    python3 -c "import torch, tqkv.paged" 2>/dev/null || { echo "torch and tqkv are not here: this step is not done"; exit 3; }
    python3 serve.py --cache none cudnn s4 s4-exact t4 --batch 1x4096 1x32768 14x32768 fullx32768 | tee "$OUT/tokens.jsonl"
}

codes() { ./tqkv gpu-check --codes --attend; }

memcheck() {
    needs compute-sanitizer
    compute-sanitizer --tool memcheck --error-exitcode 1 ./device --include-ignored --test-threads 1 attention_and 2>&1 | tee "$OUT/memcheck.txt"
}

# Times a variant, and writes its name into each row.
variant() {
    local kind=$1 value=$2
    shift 2
    echo "== $kind $value"
    ./tqkv gpu-check --speed --seconds 0.1 --json --shape "${SHAPE:-64x32768x8x4x128,64x32768x8x8x128,1x32768x8x4x128}" \
        --codec "${CODECS:-s4,s2}" "$@" > "$OUT/variant.jsonl"
    times "$OUT/variant.jsonl"
    sed "s/^{/{\"$kind\":\"$value\",/" "$OUT/variant.jsonl" >> "$OUT/tune.jsonl"
    rm -f "$OUT/variant.jsonl"
}

STEPS="first batch python baseline serve one unlike tests shapes profile sanitize tune"
# In the order of what they decide.
SHORT="first card quick tokens registers codes memcheck"

# The most seconds of a step, then what is expected of it: what an H100 and an H200 showed (MEASURED.md, M14). "f16 read" is the
# time of reading f16 rows. Memory of an H200 is half as fast again and its multiprocessors are the same, so the ratios are smaller.
limit() {
    case $1 in
        codes | memcheck) echo 40 ;;
        quick) echo 55 ;;
        card) echo 95 ;;
        registers) echo 125 ;;
        tokens) echo 150 ;;
        first | batch | one | unlike) echo 180 ;;
        baseline | serve | python) echo 240 ;;
        tests | tune) echo 480 ;;
        *) echo 300 ;;
    esac
}
expected() {
    case $1 in
        first) echo "'test result: ok' three times, each with 1 passed" ;;
        batch) echo "H100 (H200), times f16 read: 1 to 4 heads s4 3.3 (2.5), s2 5.6 (4.0), i8 1.9 (1.9); 8 heads s4 2.8 (2.0), s2 3.7 (2.7), i8 1.9 (1.7)" ;;
        baseline) echo "f16 attention of PyTorch: cuDNN at 99 to 100 % of read; torch is needed; flash_attn, vllm and flashinfer if they are there" ;;
        python) echo "no test fails; TqkvCache faster than DynamicCache at 32768 tokens, in a quarter of its memory" ;;
        serve) echo "a row per cache and batch without an error; s4 at 3 times the tokens per second of cudnn where each fills the card" ;;
        one) echo "32768 tokens: s4 27 us, 1.5 (1.1) times f16 read; cuDNN takes 50 to 55 us (39)" ;;
        unlike) echo "63 of 1024 and one of 32768: s4 57 us (53), 2.2 (1.6) times f16 read" ;;
        tests) echo "all tests ok; 0 vectors differ; attention within 1e-5 of f64" ;;
        shapes) echo "t4: 1.7 (1.1) times f16 read with one head, 1.0 (0.7) with four; D = 256: s4 2.3 (2.6)" ;;
        profile) echo "attend: no spills, 3 blocks per multiprocessor at 4 heads, DRAM at 84 % (68); ncu and its permission are needed" ;;
        sanitize) echo "'ERROR SUMMARY: 0 errors' twice; compute-sanitizer is needed" ;;
        card) echo "no test fails" ;;
        quick) echo "the kernels of two digits take 0.77 (4 heads) and 0.88 (8) of the times of MEASURED.md, M14, in a model" ;;
        tokens) echo "a row per cache and batch without an error; s4-exact less s4 is the price of exact tokens" ;;
        registers) echo "H100 (H200), times today in a model: 8 heads without a limit s3 1.16 (1.22), i8 1.13 (1.38); with 168 and local memory s4 1.20 (0.89), s2 0.83 (0.84); 4 heads with 128 s4 1.15 (1.57); D = 256 with 168 s4 1.19 (1.09)" ;;
        codes) echo "0 vectors differ; attention within 1e-5 of f64" ;;
        memcheck) echo "'ERROR SUMMARY: 0 errors'; compute-sanitizer is needed" ;;
        tune) echo "168 registers and the cut that a cache picks are the best at 4 heads" ;;
    esac
}

# Runs a step in its time, and adds a line to the summary. Returns the status of the step.
run() {
    local step=$1 left=$((TOTAL - SECONDS)) most status came
    most=$(limit "$step")
    if ((left < most)); then most=$left; fi
    if ((most <= 0)); then
        echo "$step: not done, no time is left" >> "$OUT/summary.txt"
        return 0
    fi
    echo "== $step, at most $most s"
    timeout --kill-after=10 "$most" "$BASH" ./run-all.sh "$step" 2>&1 | tee "$OUT/$step.log"
    status=${PIPESTATUS[0]}
    case $status in
        0) came="done" ;;
        3) came="not done: $(tail -n 1 "$OUT/$step.log")" ;;
        124 | 137) came="FAILED: not finished in $most s" ;;
        *) came="FAILED with status $status: $(tail -n 1 "$OUT/$step.log")" ;;
    esac
    echo "-- expected: $(expected "$step")"
    echo "-- came:     $came"
    printf '%s: %s\n    expected: %s\n' "$step" "$came" "$(expected "$step")" >> "$OUT/summary.txt"
    tail -n 12 "$OUT/$step.log" | sed 's/^/    came:     /' >> "$OUT/summary.txt"
    if ((status == 3)); then return 0; fi
    return "$status"
}

if [[ ${1-} == short ]]; then
    STEPS=$SHORT
elif (($# > 0)); then
    case " $STEPS $SHORT " in
        *" $1 "*) ;;
        *) echo "no step $1: expected short or one of $STEPS $SHORT" >&2; exit 2 ;;
    esac
    set -e
    "$1"
    exit 0
fi

echo "commit $(cat commit.txt)" | tee "$OUT/summary.txt"
failed=0
for step in $STEPS; do
    run "$step" && continue
    failed=1
    if [[ $step == first ]]; then
        echo "the first launch was wrong: nothing else is run" >> "$OUT/summary.txt"
        break
    fi
done
echo "== summary, $SECONDS s, also in $OUT/summary.txt"
cat "$OUT/summary.txt"
exit "$failed"
