"""TENURE_TORCH=1, with a torch made up. The .pth file is read from where it lies in the source tree."""

from places import SOURCE

# site reads .pth files in folders that it is told of, and at start those of site-packages: the same code.
SITE = f"import site; site.addsitedir({str(SOURCE)!r})\n"
RECORDING = (
    "import tenure.torch, sys\n"
    "tenure.torch._install_unasked = lambda options: print('install', sorted(options.items()), hasattr(sys.modules['torch'], 'LOADED'))\n"
)


def test_unset_nothing_is_imported_and_nothing_is_hooked(run_python, fake_torch):
    for value in ({}, {"TENURE_TORCH": "0"}, {"TENURE_TORCH": ""}):
        result = run_python(
            "-c", SITE + "import sys; n = len(sys.meta_path)\nimport torch\n"
            "print('tenure' in sys.modules, [f for f in sys.meta_path if 'tenure' in type(f).__module__])",
            path=[fake_torch()], **value,
        )  # fmt: skip
        assert (result.stdout.strip(), result.stderr) == ("False []", "")


def test_set_the_import_of_torch_installs_once_after_torch_is_whole(run_python, fake_torch):
    result = run_python(
        "-c", SITE + RECORDING + "import torch.sub, torch\nfrom torch import version\n"
        "print(torch.sub.SEEN, type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)\n"
        "print([f for f in sys.meta_path if 'tenure' in type(f).__module__])",
        path=[fake_torch()], TENURE_TORCH=1, TENURE_TORCH_POLICY="caching", TENURE_TORCH_LIMIT="20GiB",
        TENURE_TORCH_MARK_BYTES="4MiB", TENURE_TORCH_LIBRARY="/nowhere",
    )  # fmt: skip
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "install [('limit', '20GiB'), ('mark_bytes', '4MiB'), ('policy', 'caching')] True",
        "True SourceFileLoader SourceFileLoader",
        "[]",
    ]


def test_looking_for_torch_does_not_import_it(run_python, fake_torch):
    result = run_python(
        "-c", SITE + RECORDING + "import importlib.util as u; s = u.find_spec('torch')\n"
        "print('torch' in sys.modules, s.origin.endswith('__init__.py'), s.loader.get_filename('torch') == s.origin)\n"
        "import torch",
        path=[fake_torch()], TENURE_TORCH=1,
    )  # fmt: skip
    assert result.stdout.splitlines() == ["False True True", "install [] True"], result.stderr


def test_a_program_without_torch_runs_as_ever(run_python):
    result = run_python(
        "-c", SITE + "try: import torch_that_is_not_there\nexcept ImportError as e: print(e.name)", TENURE_TORCH=1
    )
    assert (result.stdout.strip(), result.stderr) == ("torch_that_is_not_there", "")


def test_what_cannot_be_had_fails_the_import_and_says_why(run_python, fake_torch, unloadable):
    result = run_python(
        "-c", SITE + "import torch", path=[fake_torch()], TENURE_TORCH=1, TENURE_TORCH_LIBRARY=unloadable
    )
    assert result.returncode == 1
    assert "ImportError: TENURE_TORCH=1 asks for tenure, and it cannot be had" in result.stderr
    assert "cannot load" in result.stderr


def test_a_second_import_is_not_without_tenure_either(run_python, fake_torch, unloadable):
    result = run_python(
        "-c",
        SITE + "for _ in range(2):\n"
        "    try: import torch; print('imported')\n    except ImportError as e: print('asks for' in str(e))",
        path=[fake_torch()],
        TENURE_TORCH=1,
        TENURE_TORCH_LIBRARY=unloadable,
    )
    assert result.stdout.splitlines() == ["True", "True"], result.stderr


def test_auto_goes_on_with_a_warning(run_python, fake_torch, unloadable):
    result = run_python(
        "-c",
        SITE + "import torch; print(torch.LOADED)",
        path=[fake_torch()],
        TENURE_TORCH="auto",
        TENURE_TORCH_LIBRARY=unloadable,
    )
    assert result.stdout.strip() == "True" and "torch keeps its own allocator" in result.stderr


def test_other_values_are_named(run_python):
    result = run_python("-c", SITE + "print(1)", TENURE_TORCH="yes please")
    assert result.stdout == "1\n" and "it may be 1, auto or 0" in result.stderr


def test_an_error_in_torch_itself_stays_that_error(run_python, fake_torch):
    result = run_python(
        "-c", SITE + RECORDING + "import torch", path=[fake_torch(body="raise OSError('broken torch')")], TENURE_TORCH=1
    )
    assert result.returncode == 1 and "OSError: broken torch" in result.stderr and "install" not in result.stdout
