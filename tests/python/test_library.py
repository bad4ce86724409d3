"""The package with the real library and the real torch, as far as that goes without a device."""

import importlib.util
import os

import pytest

from places import SOURCE

LIBRARY = os.environ.get("TENURE_TORCH_LIBRARY")

pytestmark = [
    pytest.mark.skipif(not LIBRARY, reason="TENURE_TORCH_LIBRARY does not name the library"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="there is no torch"),
]

# CUDA_VISIBLE_DEVICES empty: the same with and without a GPU. `put` installs as TENURE_TORCH=1 does, which asks for none.
PRELUDE = """
import torch, tenure.torch as t
def says(function, *arguments, **options):
    try:
        print("returned", function(*arguments, **options))
    except Exception as error:
        print(type(error).__name__, error)
def put(**options):
    t._install_unasked(options)
"""


@pytest.fixture
def says(run_python):
    def run(code, **environment):
        result = run_python("-c", PRELUDE + code, CUDA_VISIBLE_DEVICES="", TENURE_TORCH_LIBRARY=LIBRARY, **environment)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return run


def test_every_function_of_the_interface_is_there(says):
    assert says(
        "from tenure import _library\nprint(all(callable(getattr(t._load(), n[13:])) for n in _library._FUNCTIONS))"
    ) == ["True"]


def test_policies(says):
    (line,) = says("says(t.policies)")
    assert "'remap'" in line and "'caching'" in line


@pytest.mark.parametrize("call", ["t.install", "t.mem_pool"])
def test_without_a_device_it_says_so(says, call):
    (line,) = says(f"says({call})")
    assert line.startswith("TenureError there is no CUDA device (CUDA_VISIBLE_DEVICES is '')")


def test_installing_is_once_and_with_one_set_of_options(says):
    lines = says("""
put(policy="caching", limit="3GiB", max_split="64MiB", share=True)
put(policy="caching", limit="3GiB", max_split="64MiB", share=True)
says(put, policy="remap")
print(t.installed(), torch.cuda.get_allocator_backend())
""")
    assert lines[0].startswith("TenureError") and lines[1].startswith("True") and "tenure" in lines[1]


@pytest.mark.parametrize(
    "options, words",
    [
        ("policy='best'", "remap"), ("no_such=1", "no_such"), ("mark_bytes='4GB'", "4GB"), ("share='perhaps'", "share"),
        ("waits='perhaps'", "waits"), ("limit='4GB'", "4GB"),
    ],
)  # fmt: skip
def test_wrong_options_change_nothing(says, options, words):
    lines = says(f"says(put, {options})\nprint(t.installed(), torch.cuda.get_allocator_backend())")
    assert lines[0].split()[0] in ("TenureError", "ValueError") and words in lines[0]
    assert lines[1] == "False native"


def test_arenas_are_made_found_entered_and_destroyed(says):
    lines = says("""
says(t.arena, "early")
put()
a = t.arena("alice", max="1GiB")
print(t.arena("alice") is a, t.current_arena())
with a:
    with t.arena("bob"):
        print(t.current_arena())
    print(t.current_arena())
print(t.current_arena())
a.set_max("2GiB")
print([(u.name, u.max, u.device, u.kind) for u in t.arenas()])
says(t.arena, "alice", policy="caching")
says(t.arena, "")
says(t.arena, "carol", max="1GB")
a.destroy()
says(a.__enter__)
print(t.arena("alice").id != a.id)
t._load().call("validate")
""")
    assert lines[0].startswith("TenureError call tenure.torch.install() first")
    assert lines[1:5] == ["True torch", "bob", "alice", "torch"]
    assert "('alice', 2147483648, None, 'arena')" in lines[5] and "('bob', None, None, 'arena')" in lines[5]
    assert (
        lines[6].startswith("TenureError") and lines[7].startswith("TenureError") and lines[8].startswith("ValueError")
    )
    assert lines[9].startswith("TenureError") and lines[10] == "True"


def test_an_arena_is_one_threads(says):
    assert says("""
import threading
put()
with t.arena("alice"):
    thread = threading.Thread(target=lambda: print(t.current_arena()))
    thread.start()
    thread.join()
""") == ["torch"]


def test_many_threads_make_enter_and_destroy_arenas(says):
    assert says("""
import threading
put()
errors = []
def work(i):
    try:
        for n in range(100):
            a = t.arena(f"arena {i}", max=n)
            with a, t.arena("shared"):
                t.arenas()
            a.destroy()
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors, sorted(u.name for u in t.arenas()))
""") == ["[] ['shared', 'torch']"]


def test_the_environment_installs(run_python):
    result = run_python(
        "-c",
        f"import site; site.addsitedir({str(SOURCE)!r})\nimport torch, tenure.torch as t\n"
        "print(t.installed(), torch.cuda.get_allocator_backend())",
        CUDA_VISIBLE_DEVICES="", TENURE_TORCH_LIBRARY=LIBRARY, TENURE_TORCH=1, TENURE_TORCH_LIMIT="1GiB",
    )  # fmt: skip
    assert result.stdout.split()[0] == "True" and "tenure" in result.stdout, result.stderr
    assert result.stderr == ""
