"""Sharing between processes"""

import pytest

torch = pytest.importorskip("torch")

import allocators

PARENT = """
    import sys
    import allocators
    import sharing_child
    OTHER = sys.argv[1]
    def answer(queue):
        got = queue.get(timeout=35)
        assert not isinstance(got, str), got
        return got
    if __name__ == "__main__":
        import torch
        import torch.multiprocessing as mp
        # Only tenure reads memory that lies in handles of several sizes, as policy remap has it (docs/torch/allocator.md).
        to_stock = OTHER == "native" and allocators.name() == "tenure"
        allocators.install(**({"policy": "caching"} if to_stock else {}))
        mp.set_start_method("spawn")
        there, back = mp.Queue(), mp.Queue()
"""


@pytest.mark.parametrize("other", ["same", "native"])
def test_to_a_child(program, other):
    """A tensor is seen and changed by another process, whatever allocator that one has"""
    out = program(
        PARENT
        + """
        child = mp.Process(target=sharing_child.take, args=(OTHER, there, back), daemon=True)
        child.start()
        tensors = [torch.full((n,), float(i + 1), device="cuda") for i, n in enumerate((10, 5000, 1 << 20, 9 << 20))]
        views = tensors + [tensors[2][1000:2000]]
        for t in views:
            wanted = t.double().sum().item()
            there.put(t)
            assert answer(back) == wanted
            assert t.double().sum().item() == wanted + t.numel()
        there.put(None)
        child.join(20)
        print(child.exitcode)
    """,
        allocators.name() if other == "same" else "native",
        install=False,
        fresh=True,
    )
    assert out == "0"


@pytest.mark.parametrize("other", ["same", "native"])
def test_from_a_child(program, other):
    """And the other way round"""
    out = program(
        PARENT
        + """
        sizes = (10, 5000, 1 << 20, 9 << 20)
        child = mp.Process(target=sharing_child.give, args=(OTHER, there, back, sizes), daemon=True)
        child.start()
        tensors = [answer(back) for _ in sizes]
        assert [t.max().item() for t in tensors] == [1.0, 2.0, 3.0, 4.0]
        garbage = [torch.full((n,), 9.0, device="cuda") for n in sizes]
        assert [t.max().item() for t in tensors] == [1.0, 2.0, 3.0, 4.0]
        del tensors
        torch.cuda.synchronize()
        there.put(None)
        child.join(20)
        print(child.exitcode)
    """,
        allocators.name() if other == "same" else "native",
        install=False,
        fresh=True,
    )
    assert out == "0"


def test_repeatedly(program):
    """The same tensor again and again; the memory comes back"""
    out = program(
        PARENT
        + """
        child = mp.Process(target=sharing_child.take, args=(OTHER, there, back), daemon=True)
        child.start()
        before = torch.cuda.memory_allocated()
        x = torch.zeros(1 << 20, device="cuda")
        for i in range(20):
            there.put(x)
            assert answer(back) == i * x.numel()
        for i in range(20):
            y = torch.full((1 << 20,), float(i), device="cuda")
            there.put(y)
            assert answer(back) == i * y.numel()
            del y
        there.put(None)
        child.join(20)
        del x
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        print(child.exitcode, torch.cuda.memory_allocated() - before)
    """,
        allocators.name(),
        install=False,
        fresh=True,
    )
    assert out == "0 0"
