#!/usr/bin/env bash
# CuPy, Numba and tenure.Buffer on a GPU, in one call of a minute or two.
#
#     tests/python/doors/run_on_gpu.sh LIBRARY RESULTS
#
# LIBRARY: libtenure.so.0, or the folder it lies in. RESULTS: made if need be; gets doors.txt. Environment: PYTHON (python3).
# Exit: 77 where there is no GPU, 1 if something failed.
set -uo pipefail

[ $# = 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
mkdir -p "$2"
TENURE_LIBRARY=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
export TENURE_LIBRARY PYTHONDONTWRITEBYTECODE=1

timeout -k 5 400 "$python" "$here/gpu_doors.py" 2>&1 | tee "$2/doors.txt"
exit "${PIPESTATUS[0]}"
