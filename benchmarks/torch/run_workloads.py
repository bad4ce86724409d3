#!/usr/bin/env python3
"""Runs the programs of workloads.py under several allocators, side by side, and compares.

    run_workloads.py [--json FILE] [--markdown FILE] [--seconds N] [--runs native=3,tenure=3,expandable=1,async=1]
                     [--workloads NAME,...] [--steps-scale F]
    run_workloads.py --render FILE.json --markdown FILE

Every run is a process of its own. All processes of one workload import at the same time and then run one after another,
the allocators taking turns, so that whatever drifts meets them all alike. The JSON file is rewritten after every run;
when the time is up, what is there is compared.

The questions, for each workload:
  same losses    where native repeats its own losses bit for bit, so must the others: bit for bit
  step time      the median step of tenure less that of native, against how far native's own runs lie apart
  memory         reserved peak against live peak, which is what the program had asked for and not got rid of at its worst

Exit: 0 if tenure holds all three, 1 if not or if a run failed, 77 where there is no GPU.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = HERE / "workloads.py"
sys.path.insert(0, str(HERE))

from workloads import STEPS  # noqa: E402

IMPORTING = 120  # seconds that a process may take to become ready
RUNNING = 90  # and to run
MEMORY_GOAL = 1.02  # reserved peak over live peak


def machine():
    """What the results are of."""
    code = (
        "import torch, json; p = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None\n"
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda, 'gpu': p and p.name}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    if result.returncode:
        return {"torch": None, "cuda": None, "gpu": None}
    return json.loads(result.stdout.strip().splitlines()[-1])


def turns(runs):
    """`{"native": 3, "tenure": 3, "async": 1}` as an order in which they take turns."""
    left, order = dict(runs), []
    while any(left.values()):
        for allocator in runs:
            if left[allocator]:
                left[allocator] -= 1
                order.append(allocator)
    return order


class Run:
    """One process: it imports, says that it is ready, and waits to be let go."""

    def __init__(self, workload, allocator, steps):
        self.workload, self.allocator = workload, allocator
        self.errors = tempfile.TemporaryFile()
        command = [sys.executable, str(PROGRAM), workload, "--allocator", allocator, "--steps", str(steps), "--wait"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def _line(self, seconds, begins):
        """The next line that begins so (libraries print as well), or nothing if it takes too long or the process ends."""
        timer = threading.Timer(seconds, self.process.kill)
        timer.start()
        try:
            return next((line.strip() for line in self.process.stdout if line.startswith(begins)), "")
        finally:
            timer.cancel()

    def ready(self, seconds):
        return self._line(seconds, "ready") != ""

    def result(self, seconds):
        """Lets it run. Returns: what it measured, or why there is nothing."""
        start = time.monotonic()
        try:
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        except OSError:
            return self.failure("ended before it began")
        line = self._line(seconds, "{")
        if not line:
            took = time.monotonic() - start
            return self.failure(f"gave no result within {seconds:.0f} s" if took >= seconds else "gave no result")
        result = json.loads(line)
        try:
            result["exit_status"] = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.stop()
            result["exit_status"] = "did not end"
        return result

    def failure(self, why):
        self.stop()
        self.errors.seek(0)
        said = self.errors.read().decode("utf-8", "replace").strip().splitlines()
        return {"workload": self.workload, "allocator": self.allocator, "error": why, "said": said[-8:]}

    def stop(self):
        self.process.kill()
        self.process.wait()


# --- comparing --------------------------------------------------------------------------------------------------------


def compare(results):
    """One row for each workload and allocator, and the three answers for tenure."""
    rows, answers = [], []
    for workload in dict.fromkeys(r["workload"] for r in results["runs"]):
        runs = [r for r in results["runs"] if r["workload"] == workload]
        good = [r for r in runs if "error" not in r]
        by_allocator = {a: [r for r in good if r["allocator"] == a] for a in results["allocators"]}
        native = by_allocator.get("native", [])
        # What the program asks for does not depend on who serves it; native's figure is everybody's measure.
        live = max((r["requested_bytes.all.peak"] for r in native), default=None)
        native_losses = [r["losses"] for r in native]
        repeats = len(native_losses) > 1 and all(losses == native_losses[0] for losses in native_losses)
        times = [r["step_ms"] for r in native]
        native_ms = statistics.median(times) if times else None
        spread = max(times) - min(times) if len(times) > 1 else None
        for allocator, own in by_allocator.items():
            failed = [r for r in runs if r["allocator"] == allocator and "error" in r]
            if not own and not failed:
                continue
            row = {
                "workload": workload,
                "allocator": allocator,
                "runs": len(own),
                "failed": [f["error"] for f in failed],
            }
            if own:
                reserved = max(r["reserved_bytes.all.peak"] or 0 for r in own)
                row.update(
                    step_ms=statistics.median(r["step_ms"] for r in own),
                    step_ms_runs=[r["step_ms"] for r in own],
                    first_steps_ms=statistics.median(r["first_steps_ms"] for r in own),
                    reserved_peak=reserved,
                    live_peak=live,
                    ratio=reserved / live if live else None,
                    same_losses=all(r["losses"] == native_losses[0] for r in own) if repeats else None,
                    device_calls=max((r["num_device_alloc"] or 0) + (r["num_device_free"] or 0) for r in own),
                    exit_statuses=[r["exit_status"] for r in own],
                )
            rows.append(row)
            if allocator.partition(":")[0] == "tenure" and own and native_ms is not None:
                answers.append({
                    "workload": workload, "allocator": allocator,
                    "native_repeats_itself": repeats, "same_losses": row["same_losses"],
                    "slower_by_ms": round(row["step_ms"] - native_ms, 3), "native_spread_ms": spread and round(spread, 3),
                    "not_slower": spread is not None and row["step_ms"] - native_ms <= spread,
                    "ratio": row["ratio"], "within_memory_goal": row["ratio"] is not None and row["ratio"] <= MEMORY_GOAL,
                    "clean_exit": not failed and all(s == 0 for s in row["exit_statuses"]),
                })  # fmt: skip
    return rows, answers


def gib(n):
    return "–" if n is None else f"{n / 2**30:.2f}"


def render(results):
    """The tables as markdown."""
    rows, answers = compare(results)
    on = results["machine"]
    text = [
        f"{on['gpu']}, torch {on['torch']}, {results['date']}; made by `benchmarks/torch/run_workloads.py`.",
        "Step: median of the steps, in ms; of several runs, the median of their medians. Reserved: the peak, in GiB, and in",
        "brackets its ratio to the live peak, which is what the program had asked for and not got rid of at its worst.",
        "",
    ]
    names = [a for a in results["allocators"] if any(r["allocator"] == a for r in rows)]
    text.append("| workload | live | " + " | ".join(f"{a}: step | reserved" for a in names) + " |")
    text.append("|---|---|" + "---|---|" * len(names))
    for workload in dict.fromkeys(r["workload"] for r in rows):
        own = {r["allocator"]: r for r in rows if r["workload"] == workload}
        live = next((r["live_peak"] for r in own.values() if r.get("live_peak")), None)
        cells = []
        for a in names:
            r = own.get(a)
            if r is None:
                cells += ["–", "–"]
            elif "step_ms" not in r:
                cells += ["failed", "–"]
            else:
                ratio = f" ({r['ratio']:.3f})" if r["ratio"] else ""
                cells += [f"{r['step_ms']:.2f}", gib(r["reserved_peak"]) + ratio]
        text.append(f"| {workload} | {gib(live)} | " + " | ".join(cells) + " |")
    text += [
        "",
        "| workload | | losses | step against native | native's own spread | reserved / live |",
        "|---|---|---|---|---|---|",
    ]
    for a in answers:
        losses = {True: "the same, bit for bit", False: "**different**", None: "native does not repeat its own"}[
            a["same_losses"]
        ]
        speed = f"{a['slower_by_ms']:+.2f} ms"
        if not a["not_slower"]:
            speed += " (native ran once)" if a["native_spread_ms"] is None else " **slower**"
        spread = "–" if a["native_spread_ms"] is None else f"{a['native_spread_ms']:.2f} ms"
        memory = (
            "–" if a["ratio"] is None else f"{a['ratio']:.3f}" + ("" if a["within_memory_goal"] else " **above 1.02**")
        )
        text.append(f"| {a['workload']} | {a['allocator']} | {losses} | {speed} | {spread} | {memory} |")
    failed = [r for r in results["runs"] if "error" in r]
    if failed:
        text += ["", "Runs that failed:", ""]
        text += [
            f"* {r['workload']}, {r['allocator']}: {r['error']}: `{(r['said'] or ['-'])[-1][:200]}`" for r in failed
        ]
    if results.get("left_out"):
        text += ["", "Not run, the time was up: " + ", ".join(results["left_out"]) + "."]
    return "\n".join(text) + "\n"


# --- the command ------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--render", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--runs", default="native=3,tenure=3,expandable=1,async=1")
    parser.add_argument("--workloads", default=",".join(STEPS))
    parser.add_argument("--steps-scale", type=float, default=1.0)
    arguments = parser.parse_args()
    if arguments.render:
        results = json.loads(arguments.render.read_text(encoding="utf-8"))
        (arguments.markdown or pathlib.Path("/dev/stdout")).write_text(render(results), encoding="utf-8")
        return 0

    about = machine()
    if not about["gpu"]:
        print("run_workloads: skipped, no GPU that torch sees")
        return 77
    deadline = time.monotonic() + arguments.seconds
    wanted = {}
    for entry in arguments.runs.split(","):
        allocator, _, count = entry.partition("=")
        wanted[allocator] = int(count or 1)
    order = turns(wanted)
    results = {
        "machine": about, "date": datetime.date.today().isoformat(), "allocators": list(wanted), "runs": [], "left_out": [],
    }  # fmt: skip

    def save():
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
        if arguments.markdown:
            arguments.markdown.write_text(render(results), encoding="utf-8")

    for workload in arguments.workloads.split(","):
        # A workload takes some half a minute; one that cannot be finished tells less than it costs.
        if deadline - time.monotonic() < 30:
            results["left_out"].append(workload)
            continue
        steps = max(4, round(STEPS[workload] * arguments.steps_scale))
        waiting = [Run(workload, allocator, steps) for allocator in order]
        try:
            ready = [run.ready(max(1.0, min(IMPORTING, deadline - time.monotonic()))) for run in waiting]
            for run, is_ready in zip(waiting, ready):
                left = deadline - time.monotonic()
                if not is_ready:
                    result = run.failure("did not become ready")
                elif left < 3:
                    results["left_out"].append(f"{workload} under {run.allocator}")
                    continue
                else:
                    result = run.result(min(RUNNING, left))
                results["runs"].append(result)
                if "error" in result:
                    print(
                        f"{workload:22} {run.allocator:12} {result['error']}: {(result['said'] or ['-'])[-1]}",
                        flush=True,
                    )
                else:
                    print(
                        f"{workload:22} {run.allocator:12} {result['step_ms']:9.2f} ms a step, reserved "
                        f"{gib(result['reserved_bytes.all.peak'])} GiB, requested {gib(result['requested_bytes.all.peak'])} GiB, "
                        f"loss {result['last_loss']:.6g}, {result['process_s']:.1f} s", flush=True,
                    )  # fmt: skip
                save()
        finally:
            for run in waiting:
                run.stop()
    save()
    print(render(results))
    _, answers = compare(results)
    held = answers and all(
        a["same_losses"] is not False and a["not_slower"] and a["within_memory_goal"] and a["clean_exit"]
        for a in answers
    )
    return 0 if held and not results["left_out"] and not any("error" in r for r in results["runs"]) else 1


if __name__ == "__main__":
    sys.exit(main())
