# Shared by the scripts, which source it.
# With pipefail, a failed check still fails when its output goes through `tee`.
set -euo pipefail
cd "$(dirname "$0")"
OUT=${OUT:-out}
mkdir -p "$OUT"
export TQKV_REQUIRE_GPU=1
# The folder of the driver in some containers.
export LD_LIBRARY_PATH="/usr/local/nvidia/lib64:${LD_LIBRARY_PATH:-}"
needs() {
    command -v "$1" >/dev/null || { echo "$1 is not here: this step is not done" >&2; exit 3; }
}
