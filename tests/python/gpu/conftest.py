"""The promises of PyTorch's allocator, one test each, under the allocator that TENURE_TEST_ALLOCATOR names.

A test's docstring is the promise as the table of features shows it, its module's first line the heading. Everything is
skipped, with the reason, where there is no torch, no device or no library. With TENURE_TEST_RECORD set, each test's
start and outcome are appended to that file as JSON lines, so that a crash can be told from what ran before it.
"""

import gc
import inspect
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import allocators  # noqa: E402

sys.path.insert(0, str(allocators.SOURCE))

RECORD = os.environ.get("TENURE_TEST_RECORD")
MIB = 1 << 20


def _missing():
    """Why nothing here can run; empty if it can."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return "no CUDA device"
    if allocators.is_tenure():
        from tenure import _library

        try:
            if _library.find() is None:
                return "libtenure_torch.so was not built (TENURE_TORCH_LIBRARY names it)"
        except ImportError as error:
            return str(error)
    try:
        allocators.install()
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        return f"the allocator {allocators.name()} cannot be had: {error}"
    return ""


def _is_ours(item):
    return HERE in item.path.resolve().parents


def pytest_collection_modifyitems(items):
    ours = [item for item in items if _is_ours(item)]
    why = _missing() if ours else ""
    for item in ours:
        if why:
            item.add_marker(pytest.mark.skip(reason=why))
        elif item.get_closest_marker("tenure_only") and not allocators.is_tenure():
            item.add_marker(pytest.mark.skip(reason="tenure's own"))


def pytest_configure(config):
    config.addinivalue_line("markers", "tenure_only: what no other allocator has")


# --- the record -------------------------------------------------------------------------------------------------------


def _write(entry):
    if RECORD:
        with open(RECORD, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _about(item):
    own = inspect.getdoc(item.function) or item.name
    group = inspect.getdoc(item.module) or item.module.__name__
    return {
        "test": f"{item.path.name}::{item.name}",
        "group": group.splitlines()[0].rstrip("."),
        "promise": " ".join(own.split("\n\n")[0].split()).rstrip("."),
        "tenure_only": item.get_closest_marker("tenure_only") is not None,
    }


def pytest_runtest_logstart(nodeid, location):
    _write({"event": "start", "test": nodeid.split("/")[-1]})


def pytest_runtest_logfinish(nodeid, location):
    _write({"event": "end", "test": nodeid.split("/")[-1]})


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if not _is_ours(item) or (report.when != "call" and report.outcome == "passed"):
        return
    reason = ""
    if report.outcome != "passed":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)[-1500:]
    _write({"event": "outcome", **_about(item), "outcome": report.outcome, "when": report.when, "reason": reason,
            "seconds": round(report.duration, 2)})  # fmt: skip


# --- fixtures ---------------------------------------------------------------------------------------------------------


def _settle():
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def clean_slate():
    """Each test begins with an empty cache, and leaves neither a limit nor a recording behind."""
    import torch

    torch.zeros(1, device="cuda")  # starts CUDA
    _settle()
    yield
    torch.cuda.synchronize()
    if allocators.name() not in ("pluggable", "rmm"):  # which have no such thing
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.memory._record_memory_history(enabled=None)
    _settle()
    if allocators.is_tenure():
        from tenure import torch as tenure_torch

        tenure_torch._load().call("validate")


@pytest.fixture
def allow():
    """allow(n): from here on this process may take `n` bytes more than it holds."""
    import torch

    def set_limit(more):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)

    return set_limit


def _environment(more=None, path=()):
    paths = [*map(str, path), str(HERE), str(allocators.SOURCE), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **{name: str(value) for name, value in (more or {}).items()},
    }


@pytest.fixture(scope="session")
def zygote():
    """See zygote.py; it imports torch while the tests go on."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "zygote.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment(), text=True
    )  # fmt: skip
    yield process
    process.stdin.close()
    process.wait(30)


@pytest.fixture
def program(tmp_path, zygote):
    """Runs a program of its own under the same allocator; returns what it printed. Its failure is the test's.

    With an environment of its own, or if `fresh`, it is a Python started for it; else torch is imported already.
    """

    def run(code, *arguments, install=True, timeout=60, fresh=False, path=(), **environment):
        script = tmp_path / f"program{time.monotonic_ns()}.py"
        prelude = "import allocators\nallocators.install()\n" if install else ""
        script.write_text(prelude + textwrap.dedent(code))
        arguments = [str(argument) for argument in arguments]
        output, errors = script.with_suffix(".out"), script.with_suffix(".err")
        if fresh or path or environment:
            with open(output, "wb") as out, open(errors, "wb") as err:
                process = subprocess.Popen(
                    [sys.executable, str(script), *arguments], env=_environment(environment, path), stdin=subprocess.DEVNULL,
                    stdout=out, stderr=err, start_new_session=True,
                )  # fmt: skip
                try:
                    status = process.wait(timeout)
                except subprocess.TimeoutExpired:
                    status = None
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # also what it has started
                except ProcessLookupError:
                    pass
                process.wait()
        else:
            request = {"script": str(script), "arguments": arguments, "output": str(output), "errors": str(errors)}
            zygote.stdin.write(json.dumps({**request, "seconds": timeout}) + "\n")
            zygote.stdin.flush()
            status = json.loads(zygote.stdout.readline())["status"]
        said = output.read_text(errors="replace")
        run.stderr = errors.read_text(errors="replace")
        ended = f"ended after {timeout} s" if status is None else f"status {status}"
        assert status == 0, f"{ended}\n{said[-2000:]}\n{run.stderr[-3000:]}"
        return said.strip()

    return run
