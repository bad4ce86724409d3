#!/usr/bin/env bash
# Runs all benchmarks on a GPU and leaves their results in a folder; some five minutes.
#
#     benchmarks/run_on_gpu.sh PROGRAMS RESULTS [LIBRARIES...]
#
# PROGRAMS: the folder with the built programs (build/release/benchmarks). RESULTS: made if need be; gets one JSON file a
# program, peers.txt (the ratio table) and log.txt. LIBRARIES: folders with shared libraries that the programs do not find by
# themselves, when they were built elsewhere: libcudart, torch's lib/, librmm, librapids_logger, libbenchmark.
#
# Environment: BENCH_FLAGS replaces the defaults for Google Benchmark below; BENCH_ONLY="peers scaling" runs only these.
# Exit: 77 where there is no GPU, 1 if a program failed (the others have run all the same).
set -uo pipefail

[ $# -ge 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; }
programs=$1 results=$2
shift 2
mkdir -p "$results"
for folder in "$@"; do
    LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

flags=(--benchmark_min_time=0.02 --benchmark_repetitions=3 --benchmark_report_aggregates_only=true)
# shellcheck disable=SC2206
[ -z "${BENCH_FLAGS:-}" ] || flags=($BENCH_FLAGS)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)
flags+=("--benchmark_context=driver=${driver:-unknown}")

status=0
run() { # PROGRAM SECONDS [ARGS...]
    local name=$1 limit=$2 start=$SECONDS rc=0
    shift 2
    case " ${BENCH_ONLY:-$name} " in *" $name "*) ;; *) return ;; esac
    if [ ! -x "$programs/$name" ]; then
        echo "-- $name: not built"
        status=1
        return
    fi
    timeout "$limit" "$programs/$name" "$@" "${flags[@]}" \
        --benchmark_out="$results/$name.json" --benchmark_out_format=json >"$results/$name.out" 2>&1 || rc=$?
    { echo "== $name"; cat "$results/$name.out"; } >>"$results/log.txt"
    [ "$rc" = 77 ] && { cat "$results/$name.out"; exit 77; }
    [ "$rc" = 0 ] || { status=1; tail -20 "$results/$name.out"; }
    [ "$name" != peers ] || sed -n '/^ns an allocation/,$p' "$results/$name.out" | tee "$results/peers.txt"
    rm "$results/$name.out"
    echo "-- $name: $((SECONDS - start)) s, exit $rc"
}

: >"$results/log.txt"
run peers 180
run scaling 90 --device cuda
run latency 90 --device cuda --benchmark_filter=-replace/.*/100000
run tail 60 --device cuda
run growth 90 --device cuda
run tenancy 60 --device cuda
exit $status
