"""The runner of the PyTorch workloads (benchmarks/torch): how it runs processes, and what it concludes."""

import sys

import pytest

from places import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "torch"))

import run_workloads

GIB = 1 << 30


def run(allocator, step_ms, losses=("0x1p+0",), reserved=2 * GIB, requested=GIB, status=0):
    return {
        "workload": "w", "allocator": allocator, "step_ms": step_ms, "first_steps_ms": 1.0, "losses": list(losses),
        "reserved_bytes.all.peak": reserved, "requested_bytes.all.peak": requested, "num_device_alloc": 3,
        "num_device_free": None, "exit_status": status,
    }  # fmt: skip


def results(*runs):
    return {
        "machine": {"gpu": "G", "torch": "T"}, "date": "D", "allocators": ["native", "tenure", "async"],
        "runs": list(runs), "left_out": [],
    }  # fmt: skip


def answer(*runs):
    (only,) = run_workloads.compare(results(*runs))[1]
    return only


def test_allocators_take_turns():
    assert run_workloads.turns({"native": 3, "tenure": 2, "async": 1}) == [
        "native",
        "tenure",
        "async",
        "native",
        "tenure",
        "native",
    ]


def test_speed_is_measured_against_natives_own_spread():
    native = [run("native", 10.0), run("native", 10.4)]
    assert answer(*native, run("tenure", 10.5))["not_slower"] is True
    assert answer(*native, run("tenure", 10.7))["not_slower"] is False
    assert answer(*native, run("tenure", 9.0))["not_slower"] is True
    assert answer(run("native", 10.0), run("tenure", 9.0))["not_slower"] is False, (
        "one run has no spread to compare with"
    )


def test_losses_count_where_native_repeats_its_own():
    same = [run("native", 1), run("native", 1)]
    assert answer(*same, run("tenure", 1))["same_losses"] is True
    assert answer(*same, run("tenure", 1), run("tenure", 1, losses=("0x1.1p+0",)))["same_losses"] is False
    assert answer(run("native", 1), run("native", 1, losses=("0x2p+0",)), run("tenure", 1))["same_losses"] is None
    assert answer(run("native", 1), run("tenure", 1))["same_losses"] is None


def test_memory_is_measured_against_what_was_asked_for():
    native = run("native", 1, reserved=3 * GIB)
    assert answer(native, run("tenure", 1, reserved=int(1.01 * GIB)))["within_memory_goal"] is True
    assert answer(native, run("tenure", 1, reserved=int(1.03 * GIB)))["within_memory_goal"] is False
    worst = answer(native, run("tenure", 1, reserved=GIB), run("tenure", 1, reserved=2 * GIB))
    assert worst["ratio"] == 2.0


def test_failures_and_exits_are_seen():
    failed = {"workload": "w", "allocator": "tenure", "error": "gave no result", "said": ["boom"]}
    assert answer(run("native", 1), run("tenure", 1), failed)["clean_exit"] is False
    assert answer(run("native", 1), run("tenure", 1, status=-6))["clean_exit"] is False
    text = run_workloads.render(results(run("native", 1), failed))
    assert "w, tenure: gave no result: `boom`" in text and "| failed |" in text


def test_the_table_shows_each_allocator():
    text = run_workloads.render(
        results(run("native", 10.0), run("native", 10.25), run("tenure", 9.0, reserved=GIB), run("async", 12.0))
    )
    assert "| w | 1.00 | 10.12 | 2.00 (2.000) | 9.00 | 1.00 (1.000) | 12.00 | 2.00 (2.000) |" in text
    assert "| w | tenure | the same, bit for bit | -1.12 ms | 0.25 ms | 1.000 |" in text


@pytest.mark.parametrize(
    "body, expected",
    [
        (
            "print('words'); print('ready', flush=True); input(); print('more words'); print('{\"step_ms\": 1}')",
            {"step_ms": 1, "exit_status": 0},
        ),
        ("print('ready', flush=True); input(); print('{\"step_ms\": 1}', flush=True); sys.exit(3)", {"exit_status": 3}),
        (
            "print('ready', flush=True); input(); print('oops', file=sys.stderr); sys.exit(1)",
            {"error": "gave no result", "said": ["oops"]},
        ),
        ("print('ready', flush=True); input(); time.sleep(60)", {"error": "gave no result within 2 s"}),
        ("sys.exit('no model')", {"error": "did not become ready", "said": ["no model"]}),
    ],
)
def test_processes(tmp_path, monkeypatch, body, expected):
    program = tmp_path / "program.py"
    program.write_text("import sys, time\n" + body)
    monkeypatch.setattr(run_workloads, "PROGRAM", program)
    process = run_workloads.Run("w", "native", 3)
    try:
        got = process.result(2) if process.ready(20) else process.failure("did not become ready")
    finally:
        process.stop()
    assert {key: got.get(key) for key in expected} == expected
