"""`pip install .`"""

import os
import subprocess
import venv

import pytest

from places import ROOT


def test_the_wheel_is_built_and_installs(tmp_path):
    """Into an empty venv, without torch, CUDA and the command: a minute, for libtenure.so."""
    try:
        venv.create(tmp_path / "venv", with_pip=True)
    except Exception as error:
        pytest.skip(f"no venv can be made: {error}")
    python = tmp_path / "venv" / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TENURE", "PYTHON"))}

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
    # The .pth file works from where it was installed.
    (tmp_path / "torch.py").write_text("")
    armed = run("-c", "import torch", TENURE_TORCH="1")
    assert "TENURE_TORCH=1 asks for tenure" in armed.stderr
    assert run("-c", "import torch, sys; print('tenure' in sys.modules)").stdout.strip() == "False"
