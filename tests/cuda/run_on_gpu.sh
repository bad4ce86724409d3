#!/usr/bin/env bash
# Runs what only a GPU can show, in some five minutes, and leaves a short report.
#
#     tests/cuda/run_on_gpu.sh PROGRAMS OUT
#
# PROGRAMS: the folder with the built programs, either a build folder of CMake (build/release) or all in one folder. OUT: made
# if need be; gets report.md, ready for docs/gpu-runs, and the logs it is made of:
#
#     report.md     versions, a row for each program, bandwidth, what the policies held, driver times
#     programs.log  what the test programs printed
#     compare.log   the tables of the comparison        compare.json, compare.html   the same as JSON, as a page
#     memcheck.log  what compute-sanitizer printed
#
# Run it in the source folder, which has the traces. Environment: COMMIT, for the report, where git cannot tell;
# SECONDS_FOR_COMPARE (default 200). Exit: 77 where there is no GPU, 1 if anything failed; the rest has run all the same.
set -uo pipefail

[ $# -eq 2 ] || { sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2; }
programs=$1 out=$2
mkdir -p "$out"
report=$out/report.md log=$out/programs.log
: >"$log"

find_program() { # NAME: prints its path
    local folder
    for folder in "" /bin /tests /tests/cuda; do
        [ -x "$programs$folder/$1" ] && [ ! -d "$programs$folder/$1" ] && { echo "$programs$folder/$1"; return; }
    done
    return 1
}

gpu=$(nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *//')
[ -n "$gpu" ] || { echo "no GPU here"; exit 77; }
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1)
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)
commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}

status=0
row() { # NAME CODE SECONDS WHAT
    local word
    case $2 in 0) word=passed ;; 77) word=skipped ;; 124) word="**timed out**" status=1 ;; *) word="**failed** ($2)" status=1 ;; esac
    echo "| $1 | $word | $3 | $4 |" >>"$report"
    echo "-- $1: $word, $3 s"
}

run() { # SECONDS NAME [ARGS...]: runs a program; its last line goes into the report
    local limit=$1 name=$2 start=$SECONDS rc=0 path last=""
    shift 2
    if path=$(find_program "$name"); then
        echo "== $name $*" >>"$log"
        timeout "$limit" "$path" "$@" >"$out/one.log" 2>&1 || rc=$?
        cat "$out/one.log" >>"$log"
        last=$(sed '/^ *$/d' "$out/one.log" | grep -v '^=*$' | tail -1 | cut -c1-110 | tr '|' '/')
        [ "$rc" = 0 ] || [ "$rc" = 77 ] || tail -5 "$out/one.log"
    else
        rc=127 last="not built"
    fi
    row "\`$name${*:+ $*}\`" "$rc" $((SECONDS - start)) "$last"
}

{
    echo "# $(date -u '+%-d %B %Y')"
    echo
    echo "    machine      $gpu; $(nproc) cores of $cpu"
    echo "    versions     driver $driver; $(find_program cuda_device >/dev/null && "$(find_program cuda_device)" versions 2>/dev/null | head -1)"
    echo "    commit       $commit"
    echo "    commands     tests/cuda/run_on_gpu.sh PROGRAMS OUT"
    echo
    echo "| program | | s | last line |"
    echo "|---|---|---|---|"
} >"$report"

run 60 cuda_device
run 60 cuda_vmm
run 60 cuda_life
run 60 cuda_host
run 60 cuda_ipc
run 60 cuda_pools
run 90 cuda_two_devices
run 60 cuda_cub
run 60 cuda_cuda_mr
run 60 planted gpu
run 120 cuda_fault
run 180 cuda_contract
run 60 cuda_bandwidth
sed -n '/^| GB\/s/,/^$/p' "$out/one.log" | grep '^|' >"$out/bandwidth.md"

# --- all traces through all policies, every byte of every block checked ---
if tenure=$(find_program tenure); then
    start=$SECONDS rc=0
    timeout "${SECONDS_FOR_COMPARE:-200}" "$tenure" compare --device cuda --policy all,fronted_remap,fronted_caching \
        --verify --costs --repeat 1 --json "$out/compare.json" --report "$out/compare.html" benchmarks/traces/*.csv.gz \
        >"$out/compare.log" 2>&1 || rc=$?
    row "\`tenure compare --verify\`" "$rc" $((SECONDS - start)) "see below"
    # One of each trace and policy.
    maps=$(grep -c "<canvas data-row=" "$out/compare.html" 2>/dev/null)
    wanted=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$out/compare.json" 2>/dev/null || echo 1)
    row "maps in its report" $((${maps:-0} != wanted)) 0 "${maps:-0} of $wanted"
else
    row "\`tenure\`" 127 0 "not built"
fi

# --- memcheck of the small ones ---
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -1)
: >"$out/memcheck.log"
check() { # SECONDS NAME [ARGS...]
    local limit=$1 name=$2 start=$SECONDS rc=0 path
    shift 2
    path=$(find_program "$name") || { row "memcheck \`$name\`" 127 0 "not built"; return; }
    [ -n "$sanitizer" ] || { row "memcheck \`$name\`" 77 0 "no compute-sanitizer here"; return; }
    echo "== $name $*" >>"$out/memcheck.log"
    timeout "$limit" "$sanitizer" --report-api-errors no --error-exitcode 9 "$path" "$@" >"$out/one.log" 2>&1 || rc=$?
    cat "$out/one.log" >>"$out/memcheck.log"
    row "memcheck \`$name${*:+ $*}\`" "$rc" $((SECONDS - start)) "$(grep -h 'ERROR SUMMARY' "$out/one.log" | tail -1 | tr -d '=')"
}
check 60 cuda_vmm
check 60 cuda_host
check 60 cuda_pools
check 90 cuda_contract "[misuse],[sizes]"
rm -f "$out/one.log"

# --- the tables ---
{
    echo
    [ -s "$out/bandwidth.md" ] && { echo "Bandwidth over memory that is mapped piece by piece:"; echo; cat "$out/bandwidth.md"; echo; }
    [ ! -s "$out/compare.json" ] || python3 - "$out/compare.json" <<'PYTHON'
import json, sys

rows = json.load(open(sys.argv[1]))
traces = list(dict.fromkeys(r["trace"] for r in rows))
policies = list(dict.fromkeys(r["policy"] for r in rows))
at = {(r["policy"], r["trace"]): r for r in rows}


def table(title, cell):
    print(f"| {title} | " + " | ".join(t.replace("_", " ") for t in traces) + " |")
    print("|---" * (len(traces) + 1) + "|")
    for p in policies:
        print(f"| `{p}` | " + " | ".join(cell(at[p, t]) if (p, t) in at else "" for t in traces) + " |")
    print()


checked = [r["gpu"]["verified"] for r in rows if r["gpu"]["verified"]]
wrong = sum(len(v["mismatches"]) + v["more"] for v in checked)
print(
    f"{len(checked)} replays with every byte of every block written and checked: "
    f"{sum(v['blocks'] for v in checked)} blocks, {sum(v['bytes'] for v in checked) / 1e12:.1f} TB, "
    f"**{wrong} mismatches**; refused requests: {sum(r['oom_count'] for r in rows)}.\n"
)
print("What was held, of what lived at the peak:\n")
table("ratio", lambda r: f"{r['ratio']:.3f}")
print("Time in the driver's calls, measured (and modelled), over a whole trace:\n")
table("driver ms", lambda r: f"{r['driver_us'] / 1000:.1f} ({r['gpu']['modelled_us'] / 1000:.1f})")

calls = {}
for r in rows:
    for c in r["gpu"]["calls"]:
        calls.setdefault((c["call"], c["bytes_up_to"], c["growing"]), []).append(c)
print("Single calls: means of the medians, weighted by count, where there were 40 or more; bold: off by more than a quarter.\n")
print("| call | bytes up to | count | median us | modelled us |\n|---|---|---|---|---|")
for (call, size, growing), of in sorted(calls.items()):
    count = sum(c["count"] for c in of)
    if count < 40:
        continue
    real = sum(c["median_ns"] * c["count"] for c in of) / count / 1000
    model = sum(c["modelled_ns"] * c["count"] for c in of) / count / 1000
    off = model == 0 or not 0.75 <= real / model <= 1.25
    text = f"**{real:.2f}**" if off else f"{real:.2f}"
    size = "" if not size else f"{size >> 20} MiB" if size >= 1 << 20 else f"{size} B"
    print(f"| `{call}`{', growing' if growing else ''} | {size} | {count} | {text} | {model:.2f} |")
PYTHON
} >>"$report"
rm -f "$out/bandwidth.md"
echo "-- report: $report"
exit $status
