"""Arenas: tenants inside one process"""

import gc
import threading

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.tenure_only

MIB = 1 << 20


@pytest.fixture
def t():
    import tenure.torch

    yield tenure.torch
    gc.collect()
    torch.cuda.synchronize()
    for name in {u.name for u in tenure.torch.arenas() if u.kind == "arena" and u.alive and u.name != "torch"}:
        tenure.torch.arena(name).destroy()


def bytes_on_device(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def usage(t, name):
    return next(u for u in t.arenas() if u.name == name and u.device == 0)


def test_routing(t):
    """Inside, this thread's tensors come from the arena, and are charged to it"""
    with t.arena("alice", max="1GiB") as alice:
        assert t.current_arena() == "alice"
        x = bytes_on_device(64 * MIB)
    assert t.current_arena() == "torch"
    y = bytes_on_device(64 * MIB)
    held = usage(t, "alice")
    assert held.allocated >= 64 * MIB and held.allocated < 128 * MIB and held.max == 1 << 30
    assert held.charged >= held.reserved >= held.allocated >= held.requested >= 64 * MIB
    assert alice.usage()[0].id == held.id
    del x
    torch.cuda.synchronize()
    assert usage(t, "alice").requested == 0 and y.numel()


def test_limit_inside(t):
    """At its limit an arena is refused with reasons, and the others go on"""
    with t.arena("alice", max="256MiB"):
        x = bytes_on_device(128 * MIB)
        with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
            bytes_on_device(256 * MIB)
        assert "CUDA out of memory. Tried to allocate" in str(caught.value)
        assert "alice" in str(caught.value)
        assert x.fill_(1).max().item() == 1
    assert usage(t, "alice").peak <= 256 * MIB and usage(t, "alice").refused >= 1
    with t.arena("bob", max="1GiB"):
        assert bytes_on_device(512 * MIB).fill_(2).min().item() == 2
    assert bytes_on_device(512 * MIB).fill_(3).min().item() == 3


def test_limits_hold_under_threads(t):
    """However many threads push against it, the limit holds at every moment"""
    limit, errors = 128 * MIB, []

    def push():
        with t.arena("crowd", max=limit):
            held = []
            for i in range(200):
                try:
                    held.append(bytes_on_device((1 + i % 7) * MIB))
                except torch.cuda.OutOfMemoryError:
                    held.clear()
                if usage(t, "crowd").charged > limit:
                    errors.append("above the limit")

    threads = [threading.Thread(target=push) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and usage(t, "crowd").peak <= limit


def test_nested(t):
    """Arenas nest, and an exception leaves them"""
    with t.arena("outer"):
        with pytest.raises(ZeroDivisionError):
            with t.arena("inner"):
                assert t.current_arena() == "inner"
                1 / 0
        assert t.current_arena() == "outer"
        with t.arena("outer"):
            assert t.current_arena() == "outer"
    assert t.current_arena() == "torch"


def test_threads_are_apart(t):
    """Being inside is a property of the thread"""
    seen = []
    with t.arena("alice"):
        thread = threading.Thread(target=lambda: seen.append(t.current_arena()))
        thread.start()
        thread.join()
    assert seen == ["torch"]


def test_decorator(t):
    """As a decorator"""

    @t.arena("alice", max="1GiB")
    def work():
        return t.current_arena(), bytes_on_device(MIB)

    name, x = work()
    assert name == "alice" and usage(t, "alice").requested >= x.numel()


def test_autograd_follows(t):
    """Autograd's threads allocate from the arena of the thread that they work for"""
    inside = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            inside.append((t.current_arena(), threading.get_ident()))
            return grad.clone()

    with t.arena("alice", max="1GiB"):
        x = torch.ones(16 * MIB, device="cuda", requires_grad=True)
        Spy.apply(x).sum().backward()
        before = usage(t, "torch").requested
    torch.cuda.synchronize()
    assert inside[0][0] == "alice"
    assert usage(t, "alice").requested >= 2 * 64 * MIB, "the gradient is charged to it"
    assert usage(t, "torch").requested == before
    x = None


def test_autograd_is_limited(t):
    """And its limit holds there"""

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad + torch.zeros(128 * MIB, device="cuda")[: grad.numel()]

    with t.arena("alice", max="256MiB"):
        x = torch.ones(MIB, device="cuda", requires_grad=True)
        with pytest.raises(torch.cuda.OutOfMemoryError, match="alice"):
            Greedy.apply(x).sum().backward()
    with t.arena("bob", max="1GiB"):
        y = torch.ones(MIB, device="cuda", requires_grad=True)
        Greedy.apply(y).sum().backward()
        assert y.grad.mean().item() == 1.0


def test_frees_go_home(t):
    """Memory goes back to its arena wherever it is freed"""
    with t.arena("alice"):
        x = bytes_on_device(32 * MIB)
    with t.arena("bob"):
        del x
        y = bytes_on_device(32 * MIB)
    torch.cuda.synchronize()
    assert usage(t, "alice").requested == 0 and usage(t, "bob").requested == y.numel()


def test_memory_is_not_shared(t):
    """What one arena has freed is not handed to another"""
    with t.arena("alice"):
        x = torch.full((8 * MIB,), 7.0, device="cuda")
        at = x.data_ptr()
        del x
    with t.arena("bob"):
        others = [torch.empty(8 * MIB, device="cuda") for _ in range(3)]
    spans = [(o.data_ptr(), o.data_ptr() + o.nbytes) for o in others]
    assert not any(low <= at < high for low, high in spans)


def test_set_max_and_trim(t):
    """Limits change while it runs, and free memory can be taken back"""
    alice = t.arena("alice", max="1GiB")
    with alice:
        x = bytes_on_device(512 * MIB)
    alice.set_max("600MiB")
    with alice, pytest.raises(torch.cuda.OutOfMemoryError):
        bytes_on_device(256 * MIB)
    del x
    torch.cuda.synchronize()
    held = usage(t, "alice").charged
    assert alice.trim() + usage(t, "alice").charged == held
    assert usage(t, "alice").charged < 64 * MIB
    t.arena("alice", max="2GiB")
    assert usage(t, "alice").max == 2 << 30
    alice.set_max(None)
    assert usage(t, "alice").max is None


def test_destroyed(t):
    """A destroyed arena's tensors live on, its name is free, and nobody enters it"""
    alice = t.arena("alice", max="1GiB")
    with alice:
        x = torch.full((MIB,), 5.0, device="cuda")
    alice.destroy()
    with pytest.raises(t.TenureError):
        alice.__enter__()
    with t.arena("alice", max="2GiB") as another:
        assert another.id != alice.id
        y = torch.full((MIB,), 6.0, device="cuda")
    assert x.mean().item() == 5.0 and y.mean().item() == 6.0
    del x
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert y.mean().item() == 6.0


def test_other_policy(t):
    """An arena has a policy of its own"""
    with t.arena("alice", policy="caching", max="1GiB"):
        x = torch.full((MIB,), 5.0, device="cuda")
    assert usage(t, "alice").policy == "caching" and x.mean().item() == 5.0
    with pytest.raises(t.TenureError, match="exists"):
        t.arena("alice", policy="remap")


def test_statistics_hold(t):
    """torch's statistics and snapshot count all arenas"""
    import consistency

    with t.arena("alice"):
        x = [bytes_on_device(n) for n in (100, 3 * MIB, 30 * MIB)]
    y = bytes_on_device(5 * MIB)
    consistency.check(torch)
    blocks = {
        b["address"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "active_allocated"
    }
    assert {v.data_ptr() for v in [*x, y]} <= blocks


def test_record_stream(t):
    """`record_stream` protects memory of arenas"""
    side = torch.cuda.Stream()
    with t.arena("alice"):
        x = torch.full((MIB,), 1.0, device="cuda")
        seen = torch.empty_like(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            seen.copy_(x)
        x.record_stream(side)
        del x
        others = [torch.full((MIB,), 2.0, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    assert seen.min().item() == seen.max().item() == 1.0
    del others


def test_graphs(t):
    """Graphs are captured inside an arena and charged to it"""
    with t.arena("alice", max="1GiB"):
        x = torch.ones(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 3
    assert usage(t, "alice").charged >= 2 * 4 * MIB
    x.fill_(5.0)
    graph.replay()
    assert y.mean().item() == 15.0
    del graph, y
    gc.collect()


def test_names(t):
    """Names are checked"""
    for bad in ("",):
        with pytest.raises(t.TenureError):
            t.arena(bad)
    with pytest.raises(TypeError):
        t.arena(3)
    with pytest.raises(ValueError, match="4GB"):
        t.arena("alice", max="4GB")


# --- a pool, with torch's own allocator in charge ------------------------------------------------------------------


POOL = """
    import gc
    import torch, tenure.torch as t
    MIB = 1 << 20
    pool = t.mem_pool("bob", max="256MiB")
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((16 * MIB,), 3.0, device="cuda")
        try:
            torch.empty(512 * MIB, dtype=torch.uint8, device="cuda")
            print("unlimited")
        except torch.cuda.OutOfMemoryError:
            print("limited")
        y = torch.full((MIB,), 4.0, device="cuda")
    z = torch.empty(512 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
    (held,) = [u for u in t.arenas() if u.name == "bob" and u.device is not None]
    print(held.kind, held.charged >= 68 * MIB, held.peak <= 256 * MIB, x.mean().item(), y.mean().item(), z.max().item())
    del x, y, pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print([u.name for u in t.arenas() if u.name == "bob"])
    print(torch.cuda.get_allocator_backend())
"""


def test_mem_pool_alone(program):
    """`mem_pool()`: a limited `MemPool` while torch's own allocator stays in charge"""
    out = program(POOL, install=False).splitlines()
    assert out == ["limited", "pool True True 3.0 4.0 1", "[]", "native"]


def test_mem_pool_installed(program):
    """And while tenure is"""
    out = program(POOL).splitlines()
    assert out[:3] == ["limited", "pool True True 3.0 4.0 1", "[]"] and "tenure" in out[3]


def test_several_mem_pools(program):
    """Several pools, each with its limit"""
    out = program(
        """
        import torch, tenure.torch as t
        MIB = 1 << 20
        pools = [t.mem_pool(max=f"{128 * (i + 1)}MiB") for i in range(4)]
        kept, refused = [], []
        for pool in pools:
            with torch.cuda.use_mem_pool(pool):
                n = 0
                try:
                    while n < 100:
                        kept.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda"))
                        n += 1
                except torch.cuda.OutOfMemoryError:
                    refused.append(n)
        print(*refused)
        print(*[pool.arena.usage()[0].max // MIB for pool in pools])
    """,
        install=False,
    ).splitlines()
    assert out[1] == "128 256 384 512"
    for count, most in zip(map(int, out[0].split()), (4, 8, 12, 16)):
        assert most - 2 <= count <= most


def test_mem_pool_gives_back(program):
    """The memory of a pool that is gone is everybody's at once"""
    out = program(
        """
        import gc
        import torch, tenure.torch as t
        torch.zeros(1, device="cuda")
        n = torch.cuda.mem_get_info()[0] * 6 // 10
        pool = t.mem_pool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.empty(n, dtype=torch.uint8, device="cuda")
        try:
            pool.arena.destroy()
        except t.TenureError:
            print("in use")
        del x, pool
        gc.collect()
        torch.cuda.empty_cache()
        y = torch.empty(n, dtype=torch.uint8, device="cuda")
        print(y[-1:].fill_(7).item())
    """,
        install=False,
    )
    assert out.splitlines() == ["in use", "7"]


def test_profiler_inside(t):
    """A profiler that starts inside an arena does not keep the thread in it"""
    from torch.profiler import ProfilerActivity, profile

    recorded = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with t.arena("alice"):
        recorded.start()
    assert t.current_arena() == "torch"
    x = bytes_on_device(MIB)
    recorded.stop()
    assert x.numel() == MIB and t.current_arena() == "torch"
