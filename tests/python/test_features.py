"""The runner of the feature tests (gpu/features.py): what it makes of tests that pass, fail, crash and hang."""

import importlib.util
import json
import shutil
import time

import pytest

from places import ROOT

GPU = ROOT / "tests" / "python" / "gpu"

TESTS = '''"""Made-up features"""
import os, time
import pytest

@pytest.fixture(autouse=True)
def clean_slate():
    yield

def test_good():
    """A promise that is kept"""

@pytest.mark.parametrize("n", [1, 2, 3])
def test_some(n):
    """One that is kept sometimes"""
    assert n != 2, "two"

def test_not_here():
    """One that is not asked"""
    pytest.skip("not here")

@pytest.mark.tenure_only
def test_own():
    """One of tenure's own"""

def test_crash():
    """One that crashes"""
    if os.environ["TENURE_TEST_ALLOCATOR"] == "native":
        os.abort()

def test_between():
    """One behind the crash"""

@pytest.fixture
def bad_end():
    yield
    if os.environ["TENURE_TEST_ALLOCATOR"] == "native":
        os.abort()

def test_teardown(bad_end):
    """One that crashes when it is over"""

def test_hang():
    """One that hangs"""
    if os.environ["TENURE_TEST_ALLOCATOR"] == "native":
        time.sleep(600)

def test_last():
    """The last one"""
    if os.environ["TENURE_TEST_ALLOCATOR"] == "native":
        import atexit
        atexit.register(os.abort)
'''


PROGRAMS = '''"""Made-up programs"""
import pytest

@pytest.fixture(autouse=True)
def clean_slate():
    yield

CODE = """
    import atexit, os, sys
    atexit.register(lambda: print("bye"))
    print(__name__, sys.argv[1:], "torch" in sys.modules, os.environ.get("MINE"))
    print("words", file=sys.stderr)
"""

def test_forked(program):
    """One that is forked"""
    assert program(CODE, 1, "two", install=False).splitlines() == ["__main__ ['1', 'two'] True None", "bye"]
    assert program.stderr == "words\\n"
    assert program("print(3)", install=False) == "3"

def test_fresh(program):
    """One that is started"""
    assert program(CODE, install=False, MINE="x").splitlines() == ["__main__ [] False x", "bye"]

@pytest.mark.parametrize("fresh", [False, True])
def test_failures(program, fresh):
    """Those that fail"""
    for code, words, timeout in (("raise ValueError('no')", "no", 100), ("import sys; sys.exit(3)", "status 3", 100),
                                 ("import os; os.abort()", "status -6", 100), ("import time; time.sleep(600)", "ended after 2 s", 2)):
        with pytest.raises(AssertionError, match=words):
            program(code, install=False, fresh=fresh, timeout=timeout)
    assert program("print(3)", install=False, fresh=fresh) == "3"
'''


@pytest.fixture
def features(tmp_path):
    for name in ("allocators.py", "features.py", "conftest.py", "zygote.py"):
        shutil.copy(GPU / name, tmp_path)
    with open(tmp_path / "conftest.py", "a", encoding="utf-8") as file:
        file.write("\n\ndef _missing():\n    return ''\n")
    (tmp_path / "test_made_up.py").write_text(TESTS)
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "test_programs.py").write_text(PROGRAMS)
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    spec = importlib.util.spec_from_file_location("features_under_test", tmp_path / "features.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PER_TEST = 12
    return module


def test_every_test_has_an_outcome(features):
    native = features.run_file("test_made_up.py", "native", time.monotonic() + 300)
    by_test = {o["test"].split("::")[1]: o for o in native}
    assert {name: o["outcome"] for name, o in by_test.items()} == {
        "test_good": "passed", "test_some[1]": "passed", "test_some[2]": "failed", "test_some[3]": "passed",
        "test_not_here": "skipped", "test_own": "skipped", "test_crash": "failed", "test_between": "passed",
        "test_teardown": "failed", "test_hang": "failed", "test_last": "passed", "Ends well": "failed",
    }  # fmt: skip
    assert "crashed: status -6" in by_test["test_crash"]["reason"] and "hung" in by_test["test_hang"]["reason"]
    assert "not here" in by_test["test_not_here"]["reason"]

    tenure = features.run_file("test_made_up.py", "tenure", time.monotonic() + 300)
    assert sum(o["outcome"] == "passed" for o in tenure) == 9
    outcomes = native + tenure
    features.fill_in(outcomes)
    results = {
        "machine": {"gpu": "G", "torch": "T"},
        "date": "D",
        "allocators": ["native", "tenure"],
        "outcomes": outcomes,
    }
    table = features.render(json.loads(json.dumps(results)))
    assert "## Made-up features" in table
    for line in (
        "| promises kept, of those asked | 3 of 8 | 7 of 8 |", "| A promise that is kept | yes | yes |",
        "| One that is kept sometimes | **2 of 3** | **2 of 3** |", "| One that is not asked | – | – |",
        "| One of tenure's own | – | yes |", "| One that crashes | **no** | yes |", "| One that hangs | **no** | yes |",
    ):  # fmt: skip
        assert line in table.splitlines()
    assert "* tenure, One that is kept sometimes: `AssertionError: two" in table


def test_a_file_that_does_not_come_up_is_a_failure(features):
    (outcome,) = features.run_file("test_broken.py", "native", time.monotonic() + 300)
    assert outcome["outcome"] == "failed" and "no_such_module" in outcome["reason"]


def test_no_time_left_runs_nothing(features):
    assert features.run_file("test_made_up.py", "native", time.monotonic()) == []


def test_programs_run_forked_and_fresh(features):
    outcomes = features.run_file("test_programs.py", "native", time.monotonic() + 300)
    assert [(o["test"], o["reason"]) for o in outcomes if o["outcome"] != "passed"] == []
    assert len(outcomes) == 4
