#!/usr/bin/env bash
# Runs all benchmarks on a GPU and leaves their results in a folder, in at most six minutes.
#
#     benchmarks/run_on_gpu.sh PROGRAMS RESULTS [LIBRARIES...]
#
# PROGRAMS: the folder with the built programs (build/release/benchmarks). RESULTS: made if need be; gets one JSON file a
# program, peers.txt (the ratio table), log.txt, and where there is python3 what plot.py makes of it: results.md, plots.
# LIBRARIES: folders with shared libraries that the programs do not find by themselves, when they were built elsewhere:
# libcudart, torch's lib/, librmm, librapids_logger, libbenchmark.
#
# Environment: BENCH_FLAGS replaces the defaults for Google Benchmark below; BENCH_ONLY="peers scaling" runs only these;
# BENCH_SECONDS is the time for all (350). A program whose time is over is stopped; what it has measured by then stays.
# Exit: 77 where there is no GPU, 1 if a program failed or was stopped (the others have run all the same).
set -uo pipefail

[ $# -ge 2 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
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
    local name=$1 limit=$2 start=$SECONDS left=$((${BENCH_SECONDS:-350} - SECONDS)) rc=0
    shift 2
    case " ${BENCH_ONLY:-$name} " in *" $name "*) ;; *) return ;; esac
    if [ ! -x "$programs/$name" ]; then
        echo "-- $name: not built"
        status=1
        return
    fi
    [ "$left" -lt "$limit" ] && limit=$left
    if [ "$limit" -le 0 ]; then
        echo "-- $name: no time left"
        status=1
        return
    fi
    timeout "$limit" "$programs/$name" "${flags[@]}" "$@" \
        --benchmark_out="$results/$name.json" --benchmark_out_format=json >"$results/$name.out" 2>&1 || rc=$?
    { echo "== $name"; cat "$results/$name.out"; } >>"$results/log.txt"
    [ "$rc" = 77 ] && { cat "$results/$name.out"; exit 77; }
    [ "$rc" = 0 ] || { status=1; tail -20 "$results/$name.out"; }
    [ "$name" != peers ] || sed -n '/^ns an allocation/,$p' "$results/$name.out" | tee "$results/peers.txt"
    rm "$results/$name.out"
    echo "-- $name: $((SECONDS - start)) s, exit $rc"
}

# The policies that are chosen between; all of them on a simulated device: `./dev bench`.
ours='(nothing|best_fit|caching|remap|fronted_best_fit|fronted_remap|announced_remap)'

: >"$results/log.txt"
run peers 150
run latency 90 --device cuda "--benchmark_filter=-replace/.*/arena/.*/100000"
run growth 70 --device cuda "--benchmark_filter=/$ours/"
run tenancy 40 --device cuda "--benchmark_filter=/$ours(/|\$)"
run scaling 60 --device cuda "--benchmark_filter=/$ours/"
# Its figures are of half a million calls each: one repetition will do.
run tail 40 --device cuda "--benchmark_filter=clock|/$ours/" --benchmark_repetitions=1 \
    --benchmark_report_aggregates_only=false
if command -v python3 >/dev/null; then
    python3 "$(dirname "$0")/plot.py" "$results" "$results" || status=1
fi
exit $status
