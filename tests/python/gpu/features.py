#!/usr/bin/env python3
"""Runs the feature tests under several allocators and makes the table of features from what they say.

    features.py [--allocators native,tenure,pluggable,rmm] [--json FILE] [--markdown FILE] [--jobs N] [--seconds N]
    features.py --render FILE.json --markdown FILE          # the table from an earlier run

Each test file runs in a process of its own under each allocator, several at a time. A crash or a hang costs one test:
its file goes on behind it. The JSON file is rewritten after every file, so that an interrupted run leaves what it has.
Exit: 0 if native and tenure passed everything that ran, 1 if not, 77 where there is no GPU.
"""

import argparse

import concurrent.futures
import datetime
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
FIRST = ("test_compile.py", "test_install.py", "test_sharing.py", "test_exit.py", "test_arenas.py")  # the longest
OTHERS = ("pluggable", "rmm")  # shown, and no failure of ours
PER_TEST = 100  # seconds without a word, after which a test is held to hang
TO_COME_UP = 100  # at least so many before the first word
PER_SLOW_TEST = {"test_compile.py": 180}


def machine():
    """What the results are of."""
    code = (
        "import torch, json; p = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None\n"
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, 'gpu': p and p.name}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if result.returncode:
        return {"torch": None, "cuda": None, "gpu": None, "error": result.stderr.strip().splitlines()[-1:]}
    return json.loads(result.stdout.strip().splitlines()[-1])


def read_record(path):
    """Outcomes by test, and the tests that began and did not end."""
    outcomes, open_tests = {}, []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # cut off by a crash
        test = entry["test"]
        if entry["event"] == "start":
            open_tests = [test]
            continue
        if entry["event"] == "end":
            open_tests = []
            continue
        worse = outcomes.get(test)
        if worse is None or worse["outcome"] == "passed":
            outcomes[test] = {k: v for k, v in entry.items() if k != "event"}
    return outcomes, open_tests


running = set()  # processes; each leads a session, so nobody ends them when this one is ended


def give_up(*_):
    for process in list(running):
        stop(process)
    os._exit(1)


def stop(process):
    """Ends a test process and whatever it started: it leads a session of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def wait(process, record, patience, deadline):
    """Waits for a test process. Returns: its status; None if it was ended because nothing moved or the time was up."""
    moved, seen = time.monotonic(), 0
    while True:
        try:
            return process.wait(0.3)
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        size = record.stat().st_size if record.exists() else 0
        if size != seen:
            moved, seen = now, size
        if now - moved > (patience if seen else max(patience, TO_COME_UP)) or now > deadline:
            stop(process)
            return None


def run_file(name, allocator, deadline):
    """All tests of one file under one allocator. Returns: a list of outcomes."""
    known = {}
    while True:
        if deadline - time.monotonic() < 5:
            break
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder) / "record"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={HERE}",
                       f"--confcutdir={HERE}", f"--basetemp={folder}/tmp", name]  # fmt: skip
            for test in known:
                command += ["--deselect", test]
            environment = {**os.environ, "TENURE_TEST_ALLOCATOR": allocator, "TENURE_TEST_RECORD": str(record)}
            with open(f"{folder}/output", "w+b") as output:
                process = subprocess.Popen(
                    command, cwd=HERE, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
                running.add(process)
                status = wait(process, record, PER_SLOW_TEST.get(name, PER_TEST), deadline)
                ended = "hung" if status is None else f"crashed: status {status}"
                running.discard(process)
                output.seek(0, os.SEEK_END)
                output.seek(max(0, output.tell() - 3000))
                said = output.read().decode("utf-8", "replace")
            outcomes, open_tests = read_record(record)
        fresh = {test: outcome for test, outcome in outcomes.items() if test not in known}
        known.update(fresh)
        if status in (0, 1, 5):
            break
        failed = {"outcome": "failed", "when": "call", "reason": f"{ended}\n{said[-1500:]}", "seconds": 0}
        for test in open_tests:  # also one that had passed, and then broke what it left behind
            known[test] = {"test": test, "group": "", "promise": "", **known.get(test, {}), **failed}
        if not open_tests:
            what = "Comes up" if not known else "Ends well"
            known[f"{name}::{what}"] = {"test": f"{name}::{what}", "group": "", "promise": f"{what} ({name})", **failed}
            if not fresh:
                break
    return [{"allocator": allocator, **outcome} for outcome in known.values()]


def fill_in(outcomes):
    """Tests that crashed said nothing of themselves; the same test under another allocator did."""
    words = {o["test"]: o for o in outcomes if o["promise"]}
    for o in outcomes:
        if not o["promise"]:
            other = words.get(o["test"], {})
            o["group"] = other.get("group", o["test"].split("::")[0])
            o["promise"] = other.get("promise", o["test"].split("::")[-1])
            o["tenure_only"] = other.get("tenure_only", False)


# --- the table --------------------------------------------------------------------------------------------------------


def cell(outcomes):
    """`yes`, `no`, `2 of 3`, or why there is nothing to say."""
    ran = [o for o in outcomes if o["outcome"] != "skipped"]
    if not ran:
        return "–"
    passed = sum(o["outcome"] == "passed" for o in ran)
    return "yes" if passed == len(ran) else "**no**" if passed == 0 else f"**{passed} of {len(ran)}**"


def last_line(reason):
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E ")]
    return (errors or lines or ["no reason given"])[0 if errors else -1].removeprefix("E").strip()[:200]


def render(results):
    """The table as markdown."""
    outcomes = results["outcomes"]
    allocators = results["allocators"]
    on = results["machine"]
    text = [
        "# What works on which allocator",
        "",
        "Made by `tests/python/gpu/features.py` from the outcomes of the tests beside it: each line is one promise of PyTorch's",
        "allocator, tested with the same assertions under each. `pluggable` is `torch.cuda.memory.CUDAPluggableAllocator` around",
        "`cudaMalloc` and `cudaFree`, which is what libraries that plug into PyTorch build on; `rmm` is RMM's integration, over the",
        "driver's pool. `–`: not asked, or not to be had.",
        "",
        f"{on['gpu']}, torch {on['torch']}, {results['date']}.",
        "",
        "| | " + " | ".join(allocators) + " |",
        "|---|" + "---|" * len(allocators),
        "| promises kept, of those asked | " + " | ".join(total(outcomes, a) for a in allocators) + " |",
    ]
    groups = {}
    for o in outcomes:
        groups.setdefault(o["test"].split("::")[0], {}).setdefault(o["promise"], []).append(o)
    names = {o["test"].split("::")[0]: o["group"] for o in outcomes if o["group"]}
    for file in sorted(groups, key=lambda f: order(f)):
        text += [
            "",
            f"## {names.get(file, file)}",
            "",
            "| | " + " | ".join(allocators) + " |",
            "|---|" + "---|" * len(allocators),
        ]
        for promise, entries in groups[file].items():
            cells = [cell([e for e in entries if e["allocator"] == a]) for a in allocators]
            text.append(f"| {promise.replace('|', '/')} | " + " | ".join(cells) + " |")
    failed = [o for o in outcomes if o["outcome"] == "failed" and o["allocator"] not in OTHERS]
    if failed:
        text += ["", "## What failed", ""]
        for o in failed:
            reason = last_line(o["reason"]).replace("`", "'")
            text.append(f"* {o['allocator']}, {o['promise']}: `{reason}`")
    return "\n".join(text) + "\n"


def total(outcomes, allocator):
    by_promise = {}
    for o in outcomes:
        if o["allocator"] == allocator and o["outcome"] != "skipped":
            by_promise.setdefault((o["test"].split("::")[0], o["promise"]), []).append(o["outcome"] == "passed")
    return f"{sum(all(v) for v in by_promise.values())} of {len(by_promise)}"


ORDER = ("statistics", "out_of_memory", "streams", "threads", "graphs", "checkpoints", "compile", "mem_pool", "snapshots",
         "sharing", "exit", "install", "arenas")  # fmt: skip


def order(file):
    stem = file.removeprefix("test_").removesuffix(".py")
    return (ORDER.index(stem) if stem in ORDER else len(ORDER), stem)


# --- the command ------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocators", default="native,tenure,pluggable,rmm")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--render", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=max(2, min(12, (os.cpu_count() or 2) * 3 // 4)))
    parser.add_argument("--seconds", type=float, default=1800, help="for the whole; what does not fit is left out")
    parser.add_argument("files", nargs="*", help="test files; default: all")
    arguments = parser.parse_args()
    if arguments.render:
        results = json.loads(arguments.render.read_text(encoding="utf-8"))
        (arguments.markdown or pathlib.Path("/dev/stdout")).write_text(render(results), encoding="utf-8")
        return 0

    about = machine()
    if not about["gpu"]:
        print("features: skipped, no GPU that torch sees", about.get("error", ""))
        return 77
    signal.signal(signal.SIGTERM, give_up)
    deadline = time.monotonic() + arguments.seconds
    files = arguments.files or sorted(p.name for p in HERE.glob("test_*.py"))
    files.sort(key=lambda f: FIRST.index(f) if f in FIRST else len(FIRST))
    allocators = arguments.allocators.split(",")
    if "rmm" in allocators and importlib.util.find_spec("rmm") is None:
        print("features: rmm is left out: it is not installed")
        allocators.remove("rmm")
    results = {"machine": about, "date": datetime.date.today().isoformat(), "allocators": allocators, "outcomes": []}
    lock = threading.Lock()

    def save():
        fill_in(results["outcomes"])
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
        if arguments.markdown:
            arguments.markdown.write_text(render(results), encoding="utf-8")

    def one(job):
        name, allocator = job
        start = time.monotonic()
        outcomes = run_file(name, allocator, deadline)
        with lock:
            results["outcomes"] += outcomes
            count = {kind: sum(o["outcome"] == kind for o in outcomes) for kind in ("passed", "failed", "skipped")}
            print(f"{allocator:10} {name:24} {count['passed']:3} passed {count['failed']:3} failed {count['skipped']:3} skipped"
                  f"  {time.monotonic() - start:5.0f} s", flush=True)  # fmt: skip
            for o in outcomes:
                if o["outcome"] == "failed" and allocator not in OTHERS:
                    print(f"    {o['test']}: {last_line(o['reason'])}", flush=True)
            save()

    # The columns that count first: if the time is up, it is the others that have holes.
    jobs = [(name, a) for late in (False, True) for name in files for a in allocators if (a in OTHERS) == late]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, jobs))
    save()
    for allocator in allocators:
        print(f"{allocator}: {total(results['outcomes'], allocator)} promises kept")
    bad = [o for o in results["outcomes"] if o["outcome"] == "failed" and o["allocator"] not in OTHERS]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
