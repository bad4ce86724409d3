#!/usr/bin/env python3
"""End-to-end tests of `tenure run`, over a fake CUDA runtime. The environment names what is run: TENURE_CLI,
TENURE_PRELOAD_LIBRARY, FAKE_PROGRAM, PLUGIN, PLUGGED, STATIC_PROGRAM.
"""

import os
import pathlib
import stat
import subprocess
import sys

import pytest

CLI = os.environ.get("TENURE_CLI", "tenure")


def place(name):
    path = os.environ.get(name)
    if not path:
        pytest.skip(f"{name} is not named")
    return path


def run(*arguments, **environment):
    return subprocess.run(
        [CLI, "run", *map(str, arguments)], env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("policy", [None, "best_fit", "best_fit:segment_bytes=32MiB", "fronted_best_fit", "none"])
def test_an_unchanged_program_under_a_limit(policy):
    options = ["--policy", policy] if policy else []
    done = run("--limit", "64MiB", *options, "--", place("FAKE_PROGRAM"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS the limit" in done.stdout and "FAIL" not in done.stdout
    assert done.stderr == "tenure run: memory that a CUDA graph allocates for itself is counted, but the limit cannot refuse it\n"


def test_without_tenure_the_same_program_fails():
    """So the checks can fail."""
    done = subprocess.run([place("FAKE_PROGRAM")], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    for name in ("the limit", "memory information", "what is not pooled", "a pool serves"):
        assert f"FAIL {name}" in done.stdout


def test_summary():
    done = run("--limit", "64MiB", "--summary", place("FAKE_PROGRAM"))
    assert "tenure run: cuda:0: at most 64 MiB held of 64 MiB" in done.stderr
    assert "requests refused" in done.stderr


def test_a_runtime_that_a_plug_in_loads_for_itself():
    done = run("--limit", "50MiB", "--", place("PLUGIN"), place("PLUGGED"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "50 MiB\n"
    alone = subprocess.run([place("PLUGIN"), place("PLUGGED")], capture_output=True, text=True, timeout=60, check=True)
    assert alone.stdout == "200 MiB\n"


def test_programs_without_cuda_run_as_ever():
    done = run("--limit", "1GiB", "--", sys.executable, "-c", "import sys; print(sys.argv)", "--limit", "-x")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == "['-c', '--limit', '-x']\n"
    assert run("--limit", "1GiB", "sh", "-c", "exit 7").returncode == 7


def test_without_a_driver_and_with_another_runtime():
    done = run("--limit", "64MiB", place("FAKE_PROGRAM"), FAKE_CUDA_DEVICES="0")
    assert "FAIL before main" in done.stdout and "tenure" not in done.stderr
    done = run("--limit", "64MiB", place("FAKE_PROGRAM"), FAKE_CUDA_VERSION="12080")
    assert "the program has CUDA runtime 12.8 and this is for 13: nothing is limited" in done.stderr


def test_shown_to_top(tmp_path):
    watch = (
        f"import ctypes, subprocess, time; ctypes.CDLL({place('PLUGGED')!r}).run(); time.sleep(0.5); "
        f"subprocess.run([{CLI!r}, 'top', '--once', '--dir', {str(tmp_path)!r}])"
    )
    done = run("--limit", "50MiB", "--publish", "--", sys.executable, "-c", watch, TENURE_PUBLISH_DIR=str(tmp_path))
    assert "  program     50 MiB" in done.stdout, done.stdout + done.stderr


def refused(message, *arguments):
    done = run(*arguments)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr


def test_what_cannot_be(tmp_path):
    refused("which program", "--limit", "1GiB")
    refused("no such program", "--", "there-is-no-such-program")
    refused("No such file", "--", "./absent")
    refused("unknown unit", "--limit", "8GB", "--", "true")
    refused('no policy "best"', "--policy", "best", "--", "true")
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\nexit 3\n")
    refused("Permission denied", script)
    script.chmod(0o755)
    assert run(script).returncode == 3


def test_the_static_runtime_is_out_of_reach():
    program = place("STATIC_PROGRAM")
    refused("carries the CUDA runtime in itself", "--limit", "1GiB", "--", program)
    assert run("--limit", "1GiB", "--force", "--", program).returncode in (0, 77)


def test_other_users_rights(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(pathlib.Path("/bin/true").read_bytes())
    program.chmod(0o755 | stat.S_ISUID)
    refused("another user's rights", program)


def test_a_library_that_is_not_there(tmp_path):
    done = run("true", TENURE_PRELOAD_LIBRARY=str(tmp_path / "absent.so"))
    assert done.returncode == 2 and "TENURE_PRELOAD_LIBRARY says" in done.stderr


def test_an_old_preload_stays(tmp_path):
    done = run("--", "sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD=place("TENURE_PRELOAD_LIBRARY"))
    assert done.stdout.strip().count("libtenure_preload.so") == 2
