"""Leaving"""

import textwrap

import pytest

torch = pytest.importorskip("torch")


def leaves(program, code):
    """Status 0, and not a word."""
    assert program("import torch\n" + textwrap.dedent(code) + "\nprint('end')") == "end"
    words = [line for line in program.stderr.splitlines() if "Warning" not in line and "warn" not in line]
    assert not words, words


CASES = {
    "tensors": """
        x = [torch.ones(n, device="cuda") for n in (10, 1 << 20, 1 << 24)]
    """,
    "graphs": """
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            y = torch.ones(1 << 20, device="cuda") * 2
        g.replay()
    """,
    "work pending": """
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            torch.cuda._sleep(100_000_000)
            x = torch.ones(1 << 20, device="cuda")
        x.record_stream(torch.cuda.current_stream())
    """,
    "pools": """
        p = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(p):
            x = torch.ones(1 << 20, device="cuda")
    """,
    "a recording": """
        torch.cuda.memory._record_memory_history()
        x = torch.ones(1 << 20, device="cuda")
    """,
    "a cycle": """
        x = torch.ones(1 << 20, device="cuda")
        x.me = x
        y = [x]
        y.append(y)
    """,
    "an autograd graph": """
        x = torch.ones(1 << 20, device="cuda", requires_grad=True)
        (x * 2).sum().backward()
        z = (x * x).sum()
    """,
    "without using CUDA": """
    """,
}


@pytest.mark.parametrize("what", list(CASES))
def test_with(program, what):
    """The process ends with status 0, whatever is alive"""
    leaves(program, CASES[what])


def test_at_exit(program):
    """Tensors are used and freed in `atexit` functions"""
    leaves(
        program,
        """
        import atexit
        x = torch.ones(1 << 20, device="cuda")
        atexit.register(lambda: (x.sum().item(), globals().pop("x")))
    """,
    )
