"""Waits"""

import textwrap

import allocators
import pytest

torch = pytest.importorskip("torch")

MIB = 1 << 20
N = 4 * MIB  # elements; 16 MiB
LONG = 1_000_000_000  # cycles; some 0.5 s

pytestmark = pytest.mark.tenure_only


def overlap(address, y):
    """Whether `y` lies in the N elements that were at `address`."""
    return abs(y.data_ptr() - address) < 4 * N


def freed_under(side):
    """Frees a tensor that `side`, busy, still reads. Returns: what it reads into, and where the tensor was."""
    x = torch.full((N,), 1.0, device="cuda")
    seen = torch.empty_like(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        seen.copy_(x)
    x.record_stream(side)
    return seen, x.data_ptr()


def take_beside(side):
    """A new tensor, got while `side` is still busy"""
    y = torch.full((N,), 2.0, device="cuda")
    assert not side.query(), "the work is over already: this shows nothing"
    return y


def are_whole(seen, y):
    """Whether both hold what was written into them"""
    torch.cuda.synchronize()
    return seen.min().item() == seen.max().item() == 1.0 and y.min().item() == y.max().item() == 2.0


@pytest.mark.parametrize("waits", [True, False])
def test_record_stream_ends_with_the_wait(waits):
    """Memory given to `record_stream` is used again as soon as its own stream waits for that one, which may be busy"""
    side = torch.cuda.Stream()
    seen, address = freed_under(side)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    y = take_beside(side)
    assert overlap(address, y) == waits
    assert are_whole(seen, y)


@pytest.mark.parametrize("waits", [True, False])
def test_memory_of_a_stream_serves_who_waits_for_it(waits):
    """Memory freed on a stream that is busy is used on a stream that waits for it, and on no other"""
    if allocators.name() != "tenure":
        pytest.skip("a policy that keeps memory to its stream")
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    seen = torch.empty(N, device="cuda")
    side.wait_stream(current)
    with torch.cuda.stream(side):
        x = torch.empty(N, device="cuda")
        address = x.data_ptr()
        torch.cuda._sleep(LONG)
        x.fill_(1.0)
        seen.copy_(x)
        del x
    if waits:
        current.wait_stream(side)
    y = take_beside(side)
    assert overlap(address, y) == waits
    assert are_whole(seen, y)


def test_a_wait_before_the_free_is_none():
    """A stream that waited for another before memory was freed there does not stand behind that free"""
    side = torch.cuda.Stream()
    torch.cuda.current_stream().wait_stream(side)
    seen, address = freed_under(side)
    y = take_beside(side)
    assert not overlap(address, y)
    assert are_whole(seen, y)


def test_host_waits():
    """What the host has waited for, on every path that torch has for it, is over and its memory good for all"""
    current = torch.cuda.current_stream()
    event = torch.cuda.Event()

    def by_event():
        event.record()
        event.synchronize()

    ways = (by_event, torch.cuda.synchronize, current.synchronize, lambda: torch.ones(1, device="cuda").item())
    for number, wait in enumerate(ways):
        for _ in range(3):
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                x = torch.full((N,), float(number), device="cuda")
            current.wait_stream(side)
            x.record_stream(current)
            seen = x.clone()
            del x
            wait()
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.full((N,), -1.0, device="cuda")
            torch.cuda.synchronize()
            assert seen.min().item() == seen.max().item() == float(number)


def test_a_host_wait_that_a_capture_forbids(program):
    """A host wait that fails in a capture has waited for nothing"""
    out = program("""
        import torch
        n = 4 << 20
        side = torch.cuda.Stream()
        x = torch.full((n,), 1.0, device="cuda")
        seen = torch.empty_like(x)
        torch.cuda.Event().record()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000_000)
            seen.copy_(x)
        x.record_stream(side)
        del x
        graph = torch.cuda.CUDAGraph()
        failed = 0
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            for wait in (torch.cuda.synchronize, torch.cuda.current_stream().synchronize):
                try:
                    wait()
                except RuntimeError:
                    failed += 1
            try:
                graph.capture_end()
            except RuntimeError:
                pass
        y = torch.full((n,), 2.0, device="cuda")
        busy = not side.query()
        torch.cuda.synchronize()
        print(failed, busy, seen.min().item(), seen.max().item())
    """)
    assert out == "2 True 1.0 1.0"


CASE = textwrap.dedent("""
    import torch
    n = 4 << 20
    torch.full((1,), 1.0, device="cuda").add_(1)  # kernels are loaded at their first use, which takes long
    torch.cuda._sleep(1)
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.query()
    torch.cuda.synchronize()
    x = torch.full((n,), 1.0, device="cuda")
    address = x.data_ptr()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1_000_000_000)
        x.add_(1)
    x.record_stream(side)
    del x
    current.wait_stream(side)
    y = torch.full((n,), 2.0, device="cuda")
    print(not side.query(), abs(y.data_ptr() - address) < 4 * n)
""")


def test_switched_off(program):
    """`waits=False` keeps memory until the work has passed"""
    assert program("import allocators\nallocators.install(waits=False)\n" + CASE, install=False) == "True False"


def test_sanitizer_before_install(program):
    """The CUDA sanitizer's trace, enabled before, still hears of events, and tenure hears of them, too"""
    before = textwrap.dedent("""
        import torch
        import torch.cuda._gpu_trace as gpu_trace
        torch._C._activate_gpu_trace()
        heard = []
        gpu_trace.register_callback_for_event_record(lambda event, stream: heard.append("record"))
        gpu_trace.register_callback_for_event_wait(lambda event, stream: heard.append("wait"))
        import allocators
        allocators.install()
    """)
    out = program(before + CASE + "print(heard)\n", install=False)
    assert out.splitlines() == ["True True", str(["record", "wait"] * 2)]
