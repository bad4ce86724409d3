"""`python -m tenure compare SNAPSHOT --report`: what the recording allocator had reserved, the answer, the figure."""

import pickle

import pytest
from snapshots import block, event, segment, snapshot

from tenure import _figure, _recorded

MIB = 1 << 20


def recording():
    """Starts in mid-program with 20 MiB reserved, grows to 60, and gives 40 back before its end."""
    history = [
        event("alloc", 64 * MIB, 4 * MIB, time_us=1),
        event("segment_alloc", 128 * MIB, 40 * MIB, time_us=2),
        event("alloc", 128 * MIB, 8 * MIB, time_us=3),
        event("free_requested", 128 * MIB, 8 * MIB, time_us=4),
        event("free_completed", 128 * MIB, 8 * MIB, time_us=4),
        event("segment_free", 128 * MIB, 40 * MIB, time_us=5),
        event("free_requested", 64 * MIB, 4 * MIB, time_us=6),
        event("free_completed", 64 * MIB, 4 * MIB, time_us=6),
    ]
    return snapshot(history, segments=[segment(64 * MIB, [block(20 * MIB)])])


def test_the_peak_is_found_backwards_from_the_end():
    assert _recorded.reserved_peak(recording(), 0) == 60 * MIB
    assert _recorded.reserved_peak(recording(), 1) is None
    grown = snapshot(
        [event("segment_map", 0, 2 * MIB), event("segment_map", 2 * MIB, 2 * MIB), event("segment_unmap", 0, 2 * MIB)],
        segments=[segment(2 * MIB, [block(2 * MIB)])],
    )
    assert _recorded.reserved_peak(grown, 0) == 4 * MIB


@pytest.mark.parametrize("damaged", [{}, {"segments": [1], "device_traces": [[]]}, {"segments": [{"device": 0}], "device_traces": [[]]}])
def test_what_cannot_be_read_is_not_known(damaged):
    assert _recorded.reserved_peak(damaged, 0) is None


def test_the_answer_is_against_what_the_program_had_reserved(run_python, tmp_path, command):
    source = tmp_path / "step.pickle"
    source.write_bytes(pickle.dumps(recording()))
    page = tmp_path / "out.html"
    result = run_python("-m", "tenure", "compare", source, "--repeat", "1", "--report", page, TENURE_COMMAND=command)
    assert result.returncode == 0, result.stderr
    answer = result.stdout.splitlines()[-1]
    assert answer.startswith("step: ") and "of the 60 MiB that its own allocator reserved while it was recorded" in answer
    assert "as recorded" in result.stdout and "torch native" not in result.stdout
    text = page.read_text(encoding="utf-8")
    assert answer in text
    (drawn,) = _figure.data_of(str(page))["traces"]
    assert drawn["peers"] == [{"name": "as recorded", "reserved": 60 * MIB}]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.html", "step.pickle"]


def test_a_name_that_is_no_field_of_a_table_is_compared_without(run_python, tmp_path, command):
    source = tmp_path / "a,b.pickle"
    source.write_bytes(pickle.dumps(recording()))
    result = run_python("-m", "tenure", "compare", source, "--policy", "caching", "--repeat", "1", TENURE_COMMAND=command)
    assert result.returncode == 0, result.stderr
    assert "as recorded" not in result.stdout


def test_png(run_python, tmp_path, command):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    trace = tmp_path / "a.csv"
    trace.write_text("t_us,op,id,bytes,stream\n0,a,0,1000000,0\n5,a,1,5000000,0\n9,f,0,1000000,0\n")
    for name, magic in (("a.png", b"\x89PNG"), ("a.pdf", b"%PDF"), ("a.svg", b"<?xml")):
        result = run_python(
            "-m", "tenure", "compare", trace, "--repeat", "1", f"--png={tmp_path / name}", TENURE_COMMAND=command
        )
        assert result.returncode == 0, result.stderr
        assert (tmp_path / name).read_bytes().startswith(magic)
    result = run_python(
        "-m", "tenure", "compare", trace, "--repeat", "1", "--png", tmp_path / "a.unknown", TENURE_COMMAND=command
    )
    assert result.returncode == 2 and "a.unknown" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.pdf", "a.png", "a.svg"]


def test_png_says_what_it_needs(run_python, tmp_path, command):
    trace = tmp_path / "a.csv"
    trace.write_text("t_us,op,id,bytes,stream\n0,a,0,1000,0\n")
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "matplotlib.py").write_text("raise ImportError('not here')\n")
    result = run_python(
        "-m", "tenure", "compare", trace, "--quiet", "--repeat", "1", "--png", tmp_path / "a.png", path=[hidden],
        TENURE_COMMAND=command,
    )  # fmt: skip
    assert result.returncode == 2 and "pip install matplotlib" in result.stderr
    result = run_python("-m", "tenure", "compare", trace, "--png", TENURE_COMMAND=command)
    assert result.returncode == 2 and "--png needs a file" in result.stderr
    result = run_python("-m", "tenure", "compare", trace, "--png", "a.png", "--report", "-", TENURE_COMMAND=command)
    assert result.returncode == 2 and "--png needs the page in a file" in result.stderr


def test_the_spans_of_a_row():
    row = {"reserved": [[0, 1, 2], [3, 5, 6], [4, 6, 6]]}
    assert _figure.reserved_of(row, 6) == [2, 2, 2, 6, 6, 6]


def test_only_a_page_of_compare_has_data(tmp_path):
    (tmp_path / "x.html").write_text("<html></html>")
    with pytest.raises(_figure.FigureError):
        _figure.data_of(str(tmp_path / "x.html"))
