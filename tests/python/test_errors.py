"""What `tenure.torch` says where torch, the library or the right version of either is missing."""

import pytest

from places import SOURCE

NO_TORCH = "import sys; sys.modules['torch'] = None\n"


# --- importing -----------------------------------------------------------------------------------------------------


def test_importing_everything_imports_neither_torch_nor_the_library(run_python):
    result = run_python("-c", (
        "import sys, tenure, tenure.torch, tenure.trace, tenure._autoload\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy')), tenure.torch.installed())"
    ))  # fmt: skip
    assert (result.returncode, result.stdout.strip()) == (0, "[] False"), result.stderr


def test_the_version_is_there(run_python):
    assert run_python("-c", "import tenure; print(tenure.__version__)").stdout.strip()


# --- clear errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "install()",
        "arena('a')",
        "arenas()",
        "mem_pool()",
        "stats()",
        "policies()",
        "set_limit('1GiB')",
        "current_arena()",
    ],
)
def test_without_torch_every_function_says_so(run_python, call):
    result = run_python("-c", NO_TORCH + f"import tenure.torch as t\ntry: t.{call}\nexcept ImportError as e: print(e)")
    assert "tenure.torch needs PyTorch" in result.stdout, result.stderr


def test_without_the_library_the_error_says_how_to_build_it(run_python, fake_torch):
    if (SOURCE / "tenure" / "lib").exists():
        pytest.skip("the source tree has a library in it")
    result = run_python(
        "-c", "import tenure.torch as t\ntry: t.install()\nexcept ImportError as e: print(e)", path=[fake_torch()]
    )
    assert "without libtenure_torch.so" in result.stdout and "pip install --force-reinstall" in result.stdout


def test_a_library_named_where_none_is(run_python, fake_torch, tmp_path):
    result = run_python(
        "-c", "import tenure.torch as t\ntry: t.install()\nexcept ImportError as e: print(e)", path=[fake_torch()],
        TENURE_TORCH_LIBRARY=tmp_path,
    )  # fmt: skip
    assert f"there is no {tmp_path}/libtenure_torch.so" in result.stdout, result.stderr


def test_another_minor_version_of_torch_is_refused_before_the_library_is_touched(run_python, fake_torch, unloadable):
    result = run_python(
        "-c", "import tenure.torch as t\ntry: t.install()\nexcept ImportError as e: print(e)",
        path=[fake_torch("2.12.1+cu130")], TENURE_TORCH_LIBRARY=unloadable,
    )  # fmt: skip
    assert "built for torch 2.11 and this is torch 2.12.1+cu130" in result.stdout, result.stderr
    assert "or install torch 2.11" in result.stdout


def test_a_library_that_cannot_be_loaded_is_named(run_python, fake_torch, unloadable):
    result = run_python(
        "-c", "import tenure.torch as t\ntry: t.install()\nexcept ImportError as e: print(e)",
        path=[fake_torch()], TENURE_TORCH_LIBRARY=unloadable,
    )  # fmt: skip
    assert f"cannot load {unloadable}/libtenure_torch.so" in result.stdout, result.stderr


def test_a_torch_without_cuda_is_refused(run_python, fake_torch, unloadable):
    result = run_python(
        "-c", "import tenure.torch as t\ntry: t.install()\nexcept ImportError as e: print(e)",
        path=[fake_torch("2.11.0+cpu", None)], TENURE_TORCH_LIBRARY=unloadable,
    )  # fmt: skip
    assert "torch 2.11.0+cpu is built without CUDA" in result.stdout, result.stderr


# --- options, before any library is asked -----------------------------------------------------------------------------


def test_options_become_lines():
    from tenure import _library

    lines = _library.option_lines({"policy": "remap", "limit": 5, "share": True, "x": False, "gc_threshold": 0.5})
    assert lines == b"policy=remap\nlimit=5\nshare=on\nx=off\ngc_threshold=0.5"
    with pytest.raises(ValueError, match="line break"):
        _library.option_lines({"a": "b\nlimit=0"})
    with pytest.raises(TypeError, match="option a"):
        _library.option_lines({"a": [1]})
    assert _library.limit_bytes(None) == _library.NO_LIMIT
    assert _library.limit_bytes("1GiB") == 1 << 30
