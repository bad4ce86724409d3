"""Leaving"""

import pytest

torch = pytest.importorskip("torch")


def leaves(program, code):
    """Status 0, and not a word."""
    assert program("import torch\n" + code + "\nprint('end')") == "end"
    words = [line for line in program.stderr.splitlines() if "Warning" not in line and "warn" not in line]
    assert not words, words


CASES = {
    "tensors": "x = [torch.ones(n, device='cuda') for n in (10, 1 << 20, 1 << 24)]",
    "graphs": (
        "g = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g):\n    y = torch.ones(1 << 20, device='cuda') * 2\n"
        "g.replay()"
    ),
    "work pending": "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    torch.cuda._sleep(100_000_000)\n    x = torch.ones(1 << 20, device='cuda')\nx.record_stream(torch.cuda.current_stream())",
    "pools": "p = torch.cuda.MemPool()\nwith torch.cuda.use_mem_pool(p):\n    x = torch.ones(1 << 20, device='cuda')",
    "a recording": "torch.cuda.memory._record_memory_history()\nx = torch.ones(1 << 20, device='cuda')",
    "a cycle": "x = torch.ones(1 << 20, device='cuda')\nx.me = x\ny = [x]\ny.append(y)",
    "a thread": (
        "import threading, time\n"
        "def work():\n    while True:\n        x = torch.ones(1 << 16, device='cuda'); del x\n"
        "threading.Thread(target=work, daemon=True).start()\ntime.sleep(0.2)"
    ),
    "an autograd graph": "x = torch.ones(1 << 20, device='cuda', requires_grad=True)\ny = (x * 2).sum()\ny.backward()\nz = (x * x).sum()",
    "without using CUDA": "",
}


@pytest.mark.parametrize("what", list(CASES))
def test_with(program, what):
    """The process ends with status 0, whatever is alive"""
    leaves(program, CASES[what])


def test_at_exit(program):
    """Tensors are used and freed in `atexit` functions"""
    leaves(program, "import atexit\nx = torch.ones(1 << 20, device='cuda')\natexit.register(lambda: (x.sum().item(), globals().pop('x')))")
