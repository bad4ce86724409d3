"""Shared by the tests of the Python package.

They run the package from the source tree. TENURE_CLI names the program `tenure`; TENURE_TORCH_LIBRARY the library for
PyTorch (a file or its folder); what is not there is skipped with the reason.
"""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from places import SOURCE  # noqa: E402

sys.path.insert(0, str(SOURCE))


@pytest.fixture
def run_python():
    """Runs a Python with the package on its path, and nothing of tenure's in its environment but what is given."""

    def run(*arguments, path=(), timeout=120, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TENURE")}
        clean["PYTHONPATH"] = os.pathsep.join([*map(str, path), str(SOURCE)])
        clean["PYTHONDONTWRITEBYTECODE"] = "1"
        clean.update({name: str(value) for name, value in environment.items()})
        return subprocess.run(
            [sys.executable, *map(str, arguments)], env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def command():
    """The program `tenure`."""
    path = os.environ.get("TENURE_CLI")
    if not path:
        pytest.skip("TENURE_CLI does not name the program tenure")
    return os.path.abspath(path)


@pytest.fixture
def fake_torch(tmp_path):
    """A folder with a module `torch` that is enough to be refused for what it is."""

    def make(version="2.11.0+cu130", cuda="13.0", body=""):
        package = tmp_path / "fake" / "torch"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text(
            textwrap.dedent(f"""\
            from . import version
            __version__ = {version!r}
            LOADED = True
            class cuda:
                is_available = staticmethod(lambda: False)
                is_initialized = staticmethod(lambda: False)
            {body}
            """)
        )
        (package / "version.py").write_text(f"cuda = {cuda!r}\n")
        (package / "sub.py").write_text("import torch\nSEEN = torch.LOADED\n")
        return tmp_path / "fake"

    return make


@pytest.fixture
def unloadable(tmp_path):
    """A library that cannot be loaded, with the note of what it was built for."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libtenure_torch.so").write_bytes(b"no library")
    (folder / "torch_version.txt").write_text("2.11.0\n")
    return folder
