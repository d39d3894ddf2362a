# What the scripts share; they source it.
# A check that fails must not end as what writes its lines down does.
set -euo pipefail
cd "$(dirname "$0")"
OUT=${OUT:-out}
mkdir -p "$OUT"
export TQKV_REQUIRE_GPU=1
# Where the driver of some containers is.
export LD_LIBRARY_PATH="/usr/local/nvidia/lib64:${LD_LIBRARY_PATH:-}"
needs() {
    command -v "$1" >/dev/null || { echo "$1 is not here: this step is not done" >&2; exit 3; }
}
