"""`python -m tenure` from outside."""

import json
import os
import pickle
import re
import sys

import pytest

from snapshots import event, snapshot

WHOLE = snapshot([event("alloc", 512, 7), event("alloc", 1024, 9)])


def write(path, content):
    path.write_bytes(pickle.dumps(content))
    return path


def test_help_lists_the_commands(run_python):
    result = run_python("-m", "tenure", "--help")
    assert result.returncode == 0
    for command in ("trace", "compare", "run", "top", "report", "info", "TENURE_TORCH=1"):
        assert command in result.stdout


def test_no_command_and_an_unknown_one_are_usage_errors(run_python):
    for arguments in ([], ["tarce"]):
        result = run_python("-m", "tenure", *arguments)
        assert result.returncode == 2 and "usage:" in result.stderr


# --- trace ---------------------------------------------------------------------------------------------------------


def test_trace_writes_the_file_and_says_what_is_in_it(run_python, tmp_path):
    source, target = write(tmp_path / "a.pickle", WHOLE), tmp_path / "a.csv"
    result = run_python("-m", "tenure", "trace", source, "-o", target)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{target}: device 0, 2 events, 2 blocks, 1 streams\n"
    assert target.read_text().splitlines()[1:] == ["0,a,0,7,0", "0,a,1,9,0"]


def test_trace_says_what_it_assumed(run_python, tmp_path):
    source = write(tmp_path / "a.pickle", snapshot([event("free_requested", 512, 7)]))
    result = run_python("-m", "tenure", "trace", source, "-o", tmp_path / "a.csv")
    assert "1 blocks were there before the recording began" in result.stdout
    assert run_python("-m", "tenure", "trace", source, "-o", tmp_path / "a.csv", "--quiet").stdout == ""


def test_trace_of_several_devices(run_python, tmp_path):
    source = write(tmp_path / "a.pickle", snapshot([event("alloc", 512, 7)], [], [event("alloc", 512, 8)]))
    target = tmp_path / "out.csv.gz"
    result = run_python("-m", "tenure", "trace", source, "-o", target)
    assert result.returncode == 2
    assert (
        result.stderr == f"tenure: {source}: devices 0, 2 have a history: choose one with --device N, or --device all\n"
    )
    assert run_python("-m", "tenure", "trace", source, "-o", target, "--device", "2").returncode == 0
    assert run_python("-m", "tenure", "trace", source, "-o", target, "--device", "all").returncode == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "a.pickle",
        "out.csv.gz",
        "out.device0.csv.gz",
        "out.device2.csv.gz",
    }


def test_trace_of_a_device_that_cannot_be_converted_leaves_no_files_of_others(run_python, tmp_path):
    source = write(tmp_path / "a.pickle", snapshot([event("alloc", 512, 7)], [event("alloc", 512, 8), "no event"]))
    result = run_python("-m", "tenure", "trace", source, "-o", tmp_path / "out.csv", "--device", "all")
    assert result.returncode == 2 and "event 1 of device 1 is a str" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["a.pickle"]


@pytest.mark.parametrize(
    "content", [b"", b"text", pickle.dumps({}), pickle.dumps(os.system), pickle.dumps(snapshot([]))]
)
def test_trace_refuses_in_one_line_and_writes_nothing(run_python, tmp_path, content):
    source = tmp_path / "a.pickle"
    source.write_bytes(content)
    result = run_python("-m", "tenure", "trace", source, "-o", tmp_path / "a.csv")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith(f"tenure: {source}: ") and result.stderr.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.pickle"]


def test_files_that_cannot_be_read_or_written_are_named(run_python, tmp_path):
    source = write(tmp_path / "a.pickle", WHOLE)
    missing = tmp_path / "none.pickle"
    result = run_python("-m", "tenure", "trace", missing, "-o", tmp_path / "a.csv")
    assert result.returncode == 2 and result.stderr == f"tenure: {missing}: No such file or directory\n"
    result = run_python("-m", "tenure", "trace", source, "-o", tmp_path / "no" / "a.csv")
    assert result.returncode == 2 and "No such file or directory" in result.stderr


# --- compare -------------------------------------------------------------------------------------------------------


def test_compare_replays_snapshots_as_they_are(run_python, tmp_path, command):
    source = write(tmp_path / "step.pickle", snapshot([event("free_requested", 512, 1 << 20), event("alloc", 1024, 9)]))
    result = run_python(
        "-m", "tenure", "compare", source, "--policy", "remap", "--repeat", "1", "--json", "-", TENURE_COMMAND=command
    )
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert (row["trace"], row["policy"], row["events"]) == ("step", "remap", 4)
    assert "before the recording began" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["step.pickle"]


def test_compare_takes_snapshots_and_traces_together_and_every_device(run_python, tmp_path, command):
    one = write(tmp_path / "one.pickle", snapshot([event("alloc", 512, 7)], [event("alloc", 512, 8)]))
    two = tmp_path / "two.csv"
    two.write_text("t_us,op,id,bytes,stream\n0,a,0,7,0\n")
    result = run_python(
        "-m",
        "tenure",
        "compare",
        one,
        two,
        "--policy",
        "caching",
        "--repeat",
        "1",
        "--json",
        "-",
        TENURE_COMMAND=command,
    )
    assert result.returncode == 0, result.stderr
    assert [row["trace"] for row in json.loads(result.stdout)] == ["one.device0", "one.device1", "two"]


def test_compare_hands_on_help_and_the_status(run_python, tmp_path, command):
    result = run_python("-m", "tenure", "compare", "--help", TENURE_COMMAND=command)
    assert result.returncode == 0 and "--policy" in result.stdout
    result = run_python("-m", "tenure", "compare", tmp_path / "none.csv", TENURE_COMMAND=command)
    assert result.returncode == 2 and "none.csv" in result.stderr


def test_compare_refuses_snapshots_without_a_history(run_python, tmp_path, command):
    source = write(tmp_path / "a.pickle", snapshot([]))
    result = run_python("-m", "tenure", "compare", source, TENURE_COMMAND=command)
    assert result.returncode == 2 and result.stderr.startswith(f"tenure: {source}: the snapshot has no history")


def test_compare_says_where_the_program_comes_from_if_there_is_none(run_python, tmp_path):
    result = run_python("-m", "tenure", "compare", "x.csv", PATH=tmp_path)
    assert result.returncode == 2 and "was not found" in result.stderr
    result = run_python("-m", "tenure", "compare", "x.csv", TENURE_COMMAND=tmp_path / "none")
    assert result.returncode == 2 and "which is no program" in result.stderr


# --- the program's own commands ------------------------------------------------------------------------------------


def test_what_only_the_program_can_do_is_handed_to_it_with_arguments_and_status(run_python, tmp_path):
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    program.chmod(0o755)
    for name in ("run", "top", "report"):
        result = run_python("-m", "tenure", name, "--some", "thing", TENURE_COMMAND=program)
        assert (result.returncode, result.stdout) == (7, f"{name} --some thing\n")


def test_the_script_that_pip_makes_is_not_taken_for_the_program(run_python, tmp_path):
    script, program = tmp_path / "scripts" / "tenure", tmp_path / "programs" / "tenure"
    for path, text in ((script, f"#!{sys.executable}\nfrom tenure.__main__ import main\nmain()\n"), (program, "#!/bin/sh\necho it\n")):
        path.parent.mkdir()
        path.write_text(text)
        path.chmod(0o755)
    result = run_python("-m", "tenure", "top", PATH=script.parent)
    assert result.returncode == 2 and "was not found" in result.stderr
    result = run_python("-m", "tenure", "top", PATH=f"{script.parent}{os.pathsep}{program.parent}")
    assert (result.returncode, result.stdout) == (0, "it\n")
    result = run_python("-m", "tenure", "top", TENURE_COMMAND=script)
    assert result.returncode == 2 and "which is no program" in result.stderr


# --- info ----------------------------------------------------------------------------------------------------------


def test_info_says_what_is_there_and_what_is_missing(run_python, tmp_path):
    result = run_python("-m", "tenure", "info", "--json", PATH=tmp_path)
    assert result.returncode == 0, result.stderr
    information = json.loads(result.stdout)
    assert information["command"] is None
    assert any("the program `tenure` was not found" in reason for reason in information["missing"])
    text = run_python("-m", "tenure", "info", PATH=tmp_path).stdout
    assert re.search(r"^tenure +\S", text) and "missing: the program" in text
