#!/usr/bin/env bash
# A program under `tenure run` on a GPU, in one call of a minute.
#
#     tests/preload/run_on_gpu.sh BUILD
#
# BUILD: the build folder, with bin/tenure, lib/libtenure_preload.so and tests/preload/preload_gpu_{shared,static}.
# Exit: 77 where there is no GPU, 1 if something failed.
set -uo pipefail

[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
tenure=$build/bin/tenure program=$build/tests/preload/preload_gpu_shared
export TENURE_PRELOAD_LIBRARY=$build/lib/libtenure_preload.so
status=0

ended() { # NAME WANTED GOT
    if [ "$2" = "$3" ]; then echo "PASS $1"; else echo "FAIL $1: exit $3 instead of $2"; status=1; fi
}

echo "-- without tenure"
timeout 60 "$program"
code=$?
[ $code != 77 ] || exit 77
for policy in best_fit fronted_best_fit none; do
    echo "-- --limit 64MiB --policy $policy"
    timeout 120 "$tenure" run --limit 64MiB --policy "$policy" --summary -- "$program"
    ended "policy $policy" 0 $?
done
echo "-- the static runtime is out of reach, and that is said"
timeout 60 "$tenure" run --limit 64MiB -- "$build/tests/preload/preload_gpu_static"
ended "static runtime" 2 $?
echo "-- shown to others"
folder=$(mktemp -d)
TENURE_PUBLISH_DIR=$folder timeout 60 "$tenure" run --limit 64MiB --publish -- "$program" >/dev/null 2>&1 &
for _ in $(seq 100); do
    shown=$(TENURE_PUBLISH_DIR=$folder "$tenure" top --once 2>/dev/null | grep -c "^ *program ")
    [ "$shown" = 0 ] || break
    sleep 0.05
done
wait
ended "tenure top" 1 "$shown"
rm -rf "$folder"
exit $status
