#!/usr/bin/env bash
# Everything about PyTorch that needs a GPU, in one call of less than ten minutes: the feature tests under native, tenure,
# pluggable and RMM's, then the workloads under native, tenure, expandable segments and cudaMallocAsync.
#
#     tests/python/run_on_gpu.sh LIBRARY RESULTS [WHEELS]
#
# LIBRARY: the folder with libtenure_torch.so. RESULTS: made if need be; gets log.txt, features.json, features.md,
# workloads.json and workloads.md, each rewritten as it goes. WHEELS: a folder with wheels of what this Python may lack (for
# the tests pytest and RMM, for the workloads torchvision, transformers and what they need); only what is missing is taken.
#
# Environment: PYTHON (python3), FEATURE_SECONDS (220), WORKLOAD_SECONDS (300); 0 leaves a part out. ALLOCATORS
# (native,tenure,pluggable,rmm) and RUNS (native=3,tenure=3,expandable=1,async=1) for fewer or others, as tenure:caching.
# Exit: 77 where there is no GPU, 1 if something that tenure promises failed.
set -uo pipefail

[ $# -ge 2 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$2"
library=$(cd "$1" && pwd) results=$(cd "$2" && pwd) wheels=${3:-}
python=${PYTHON:-python3}
feature_seconds=${FEATURE_SECONDS:-220} workload_seconds=${WORKLOAD_SECONDS:-300}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

exec > >(tee "$results/log.txt") 2>&1
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export TENURE_TORCH_LIBRARY=$library/libtenure_torch.so

limited() { # SECONDS COMMAND...: ends the command and what it started
    timeout -k 5 "$@"
}

# --- what is missing ------------------------------------------------------------------------------------------------
if [ -n "$wheels" ]; then
    take=()
    for wheel in "$wheels"/*.whl; do
        name=$(basename "$wheel" | sed 's/-[0-9].*//')
        # A distribution's name says what it is looked up by: its module may be called otherwise.
        "$python" -c "import importlib.metadata as m, sys; m.version(sys.argv[1])" "$name" 2>/dev/null || take+=("$wheel")
    done
    if [ ${#take[@]} -gt 0 ]; then
        limited 90 "$python" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --disable-pip-version-check \
            --target "$scratch/site" "${take[@]}" && echo "-- installed: $(basename -a "${take[@]}" | tr '\n' ' ')"
        export PYTHONPATH=$scratch/site${PYTHONPATH:+:$PYTHONPATH}
    fi
fi

# --- does it come up? -----------------------------------------------------------------------------------------------
PYTHONPATH=$root/src/python${PYTHONPATH:+:$PYTHONPATH} limited 90 "$python" -m tenure info || echo "-- info: exit $?"
PYTHONPATH=$root/src/python${PYTHONPATH:+:$PYTHONPATH} limited 90 "$python" - <<'PY'
import sys
import torch
if not torch.cuda.is_available():
    sys.exit(77)
import tenure.torch
tenure.torch.install()
x = torch.full((1 << 20,), 2.0, device="cuda")
print("-- smoke:", x.mean().item(), torch.cuda.get_allocator_backend(), tenure.torch.stats())
PY
smoke=$?
[ $smoke != 77 ] || { echo "-- no GPU"; exit 77; }
[ $smoke = 0 ] || echo "-- smoke: exit $smoke"

# --- features -------------------------------------------------------------------------------------------------------
status=0
if [ "$feature_seconds" != 0 ]; then
    start=$SECONDS
    limited $((feature_seconds + 20)) "$python" "$root/tests/python/gpu/features.py" --seconds "$feature_seconds" \
        --allocators "${ALLOCATORS:-native,tenure,pluggable,rmm}" --json "$results/features.json" --markdown "$results/features.md" ||
        status=1
    echo "-- features: $((SECONDS - start)) s"
fi

# --- workloads ------------------------------------------------------------------------------------------------------
if [ "$workload_seconds" != 0 ]; then
    start=$SECONDS
    limited $((workload_seconds + 20)) "$python" "$root/benchmarks/torch/run_workloads.py" --seconds "$workload_seconds" \
        --runs "${RUNS:-native=3,tenure=3,expandable=1,async=1}" --json "$results/workloads.json" \
        --markdown "$results/workloads.md" || status=1
    echo "-- workloads: $((SECONDS - start)) s"
fi
echo "-- all: $SECONDS s, exit $status"
exit $status
