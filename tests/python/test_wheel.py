"""`pip install .`, and the doors that need no GPU, opened from there: nothing of the source tree is on any path."""

import os
import pickle
import shutil
import subprocess
import venv

import pytest

import snapshots
from places import ROOT

BUFFER = """
import numpy, tenure
assert "site-packages" in tenure.__file__, tenure.__file__
alice = tenure.arena("alice", max="64MiB")
with alice:
    b = tenure.Buffer((100, 30), "float64", device="sim")
    x = numpy.from_dlpack(b)
    x[...] = 2
    assert numpy.asarray(b).sum() == 6000
    try:
        tenure.Buffer(100 << 20, device="sim")
    except tenure.OutOfMemory as error:
        print(error.arena, error.cause)
"""


def test_the_wheel_is_built_and_installs(tmp_path):
    """Into an empty venv, without torch, CUDA and the command: a minute, for libtenure.so."""
    try:
        venv.create(tmp_path / "venv", with_pip=True)
    except Exception as error:
        pytest.skip(f"no venv can be made: {error}")
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE", "PYTHON"))}

    if shutil.which("ccache"):
        environment.update({"CMAKE_CXX_COMPILER_LAUNCHER": "ccache", "CCACHE_NOHASHDIR": "1"})

    def run(*arguments, **more):
        return subprocess.run(
            [str(python), *map(str, arguments)], env={**environment, **more}, cwd=tmp_path, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip

    offers = run(
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "-d",
        "offers",
        "scikit-build-core>=0.10",
    )
    if offers.returncode:
        pytest.skip(f"scikit-build-core cannot be had: {offers.stderr.strip().splitlines()[-1]}")
    result = run(
        "-m", "pip", "install", "-q", "--disable-pip-version-check", "-C", "cmake.define.TENURE_PYTHON_COMMAND=OFF",
        "-C", "cmake.define.TENURE_TORCH=OFF", "-C", "cmake.define.TENURE_CUDA=OFF", "-C", f"build-dir={tmp_path / 'build'}",
        ROOT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    listed = run("-c", (
        "import tenure, importlib.metadata as m, pathlib; print(tenure.__version__)\n"
        "print(sorted(str(f) for f in m.files('tenure') if 'dist-info' not in str(f) and not str(f).endswith('.pyc')))\n"
        "print(m.requires('tenure'))"
    ))  # fmt: skip
    version, files, requires = listed.stdout.strip().splitlines()
    header = (ROOT / "include/tenure/core/version.hpp").read_text()
    assert f'"{version}"' in header
    assert "tenure/lib/libtenure.so.0" in files
    assert "tenure_autoload.pth" in files and "tenure/py.typed" in files and "include" not in files
    assert "extra" in requires and requires.count(",") == 0, "no dependencies but those of extras"
    assert run("-m", "tenure", "--help").returncode == 0
    script = subprocess.run([python.parent / "tenure", "--help"], capture_output=True, text=True, check=True).stdout
    assert script.startswith("usage: tenure "), "the command of the wheel"
    # The .pth file works from where it was installed.
    (tmp_path / "torch.py").write_text("")
    armed = run("-c", "import torch", TENURE_TORCH="1")
    assert "TENURE_TORCH=1 asks for tenure" in armed.stderr
    assert run("-c", "import torch, sys; print('tenure' in sys.modules)").stdout.strip() == "False"
    (tmp_path / "torch.py").unlink()

    # A buffer of an arena, taken by NumPy.
    numpy = run("-m", "pip", "install", "-q", "--disable-pip-version-check", "numpy")
    if numpy.returncode == 0:
        opened = run("-c", BUFFER)
        assert opened.stdout.split() == ["alice", "arena_limit"], opened.stdout + opened.stderr

    # The program's own snapshot through all policies, by the command on the PATH.
    built = os.environ.get("TENURE_CLI")
    if built:
        prefix = tmp_path / "prefix"
        prefix.mkdir()
        shutil.copy(built, prefix / "tenure")
        program = snapshots.Program(1)
        recorded = snapshots.snapshot(program.history, segments=program.segments())
        (tmp_path / "mine.pickle").write_bytes(pickle.dumps(recorded))
        path = os.pathsep.join([str(prefix), os.environ["PATH"]])
        compared = run("-m", "tenure", "compare", "mine.pickle", "--report", "out.html", PATH=path)
        assert compared.returncode == 0, compared.stderr
        assert "</html>" in (tmp_path / "out.html").read_text()
