"""Checkpoints of a pool

What `mode="reduce-overhead"` stands on: a private pool goes back to an earlier state, block by block at the same
addresses, so that a recording can go on from there.
"""

import contextlib
import gc

import pytest

torch = pytest.importorskip("torch")

MIB = 1 << 20
DEVICE = 0


def segments(pool):
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)]


def layout(pool):
    """Address, size and state of every block in use: what a checkpoint promises."""
    return sorted(
        (b["address"], b["size"], s["stream"])
        for s in segments(pool)
        for b in s["blocks"]
        if b["state"] == "active_allocated"
    )


def storage(tensor):
    return tensor.untyped_storage()._cdata


def without_owner(tensor):
    """Gives the memory of `tensor` up. Returns: the same tensor on a storage that owns nothing, as graph trees keep them."""
    torch._C._free_And_Remove_DeleterFn(storage(tensor))
    address = tensor.data_ptr()
    memory = torch._C._construct_storage_from_data_pointer(address, tensor.device, tensor.nbytes)
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory, 0, tensor.shape, tensor.stride())


class Pool:
    """A graph's pool that outlives its graph's recording; allocations inside `with pool.recording()` come from it."""

    def __init__(self):
        self.stream = torch.cuda.Stream()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.keep = torch.zeros(8, device="cuda")
        self.id = self.graph.pool()

    @contextlib.contextmanager
    def recording(self):
        torch.cuda.synchronize()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            torch._C._cuda_beginAllocateCurrentThreadToPool(DEVICE, self.id)
            try:
                yield
            finally:
                torch._C._cuda_endAllocateToPool(DEVICE, self.id)
                torch._C._cuda_releasePool(DEVICE, self.id)
        torch.cuda.current_stream().wait_stream(self.stream)

    def checkpoint(self):
        torch.cuda.synchronize()
        return torch._C._cuda_getCheckpointState(DEVICE, self.id)

    def back_to(self, state, stale=(), live=()):
        """Stale tensors lose their memory; live ones, which had given theirs up, get it back."""
        torch._C._cuda_setCheckpointPoolState(DEVICE, state, [storage(t) for t in stale], [storage(t) for t in live])


@pytest.fixture
def pool():
    made = Pool()
    yield made
    del made
    gc.collect()


def bytes_on_device(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def test_live_allocations(pool):
    """`checkPoolLiveAllocations` knows exactly what is live"""
    with pool.recording():
        a, b = bytes_on_device(100), bytes_on_device(3 * MIB)
    live = {t.data_ptr() for t in (a, b, pool.keep)}
    check = torch._C._cuda_checkPoolLiveAllocations
    assert check(DEVICE, pool.id, live)
    assert not check(DEVICE, pool.id, live - {a.data_ptr()})
    assert not check(DEVICE, pool.id, live | {a.data_ptr() + 512})
    address = b.data_ptr()
    del b
    assert check(DEVICE, pool.id, live - {address})
    assert not check(DEVICE, pool.id, live)


@pytest.mark.parametrize("sizes", [[100], [512, 512, 512], [3 * MIB], [MIB // 2, 5 * MIB, 700, 12 * MIB]], ids=str)
def test_later_allocations_are_undone(pool, sizes):
    """Going back frees what came later, and leaves every block where it was"""
    with pool.recording():
        kept = [bytes_on_device(n) for n in sizes]
    state, before = pool.checkpoint(), layout(pool.id)
    with pool.recording():
        later = [bytes_on_device(n) for n in reversed(sizes)]
    assert len(layout(pool.id)) == len(before) + len(later)
    pool.back_to(state, stale=later, live=[])
    assert layout(pool.id) == before
    del later, kept
    gc.collect()
    assert layout(pool.id) == [entry for entry in before if entry[0] == pool.keep.data_ptr()]


def test_holes_are_restored(pool):
    """Free blocks between live ones are free again, at the same place"""
    with pool.recording():
        blocks = [bytes_on_device(n) for n in (MIB, 2 * MIB, 3 * MIB, 2 * MIB, MIB, 600, 1200, 600)]
        del blocks[2], blocks[5]
    state, before = pool.checkpoint(), layout(pool.id)
    with pool.recording():
        filling = [bytes_on_device(n) for n in (3 * MIB, MIB, 1200, 600, 9 * MIB)]
    pool.back_to(state, stale=filling)
    assert layout(pool.id) == before
    with pool.recording():
        again = bytes_on_device(3 * MIB)
    assert all(not (at <= again.data_ptr() < at + size) for at, size, _ in before)
    del filling, again, blocks


def test_tensors_that_died_come_back(pool):
    """Blocks that were live and have been freed since are allocated again, and belong to the pool until freed"""
    with pool.recording():
        a, b = bytes_on_device(2 * MIB), bytes_on_device(500)
    state, before = pool.checkpoint(), layout(pool.id)
    addresses = [a.data_ptr(), b.data_ptr()]
    del a, b
    gc.collect()
    with pool.recording():
        other = bytes_on_device(7 * MIB)
    pool.back_to(state, stale=[other])
    assert layout(pool.id) == before
    for address in addresses:
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
    assert [at for at, _, _ in layout(pool.id)] == [pool.keep.data_ptr()]
    del other


def test_deleters_go_and_come(pool):
    """A live tensor gives its memory up and gets it back, with torch's deleter"""
    with pool.recording():
        a = bytes_on_device(2 * MIB)
    assert torch._C._has_Standard_Deleter(storage(a))
    state, before = pool.checkpoint(), layout(pool.id)
    a = without_owner(a)
    assert not torch._C._has_Standard_Deleter(storage(a))
    assert len(layout(pool.id)) == len(before) - 1
    with pool.recording():
        other = bytes_on_device(MIB)
    pool.back_to(state, stale=[other], live=[a])
    assert torch._C._has_Standard_Deleter(storage(a)) and not torch._C._has_Standard_Deleter(storage(other))
    assert layout(pool.id) == before
    del a, other
    gc.collect()
    assert len(layout(pool.id)) == len(before) - 1


def test_stale_tensors_must_be_named(program):
    """A tensor that would lose its memory unnoticed is an error"""
    out = program("""
        import os
        import torch
        from test_checkpoints import Pool, bytes_on_device
        pool = Pool()
        with pool.recording():
            a = bytes_on_device(1 << 20)
        state = pool.checkpoint()
        with pool.recording():
            unnamed = bytes_on_device(1 << 20)
        try:
            pool.back_to(state)
        except RuntimeError:
            print("refused", flush=True)
        os._exit(0)  # what the tensor holds now is nobody's
    """)
    assert out == "refused"


def test_back_and_forth(pool):
    """Between several checkpoints, in any order"""
    states, tensors = [], []
    for n in (700, MIB, 6 * MIB, 300, 25 * MIB):
        with pool.recording():
            tensors.append(bytes_on_device(n))
        states.append((pool.checkpoint(), layout(pool.id)))
    tensors = [without_owner(t) for t in tensors]
    for index in (2, 0, 4, 1, 3):
        state, wanted = states[index]
        pool.back_to(state, live=tensors[: index + 1])
        assert layout(pool.id) == wanted
        assert all(torch._C._has_Standard_Deleter(storage(t)) for t in tensors[: index + 1])
        tensors[: index + 1] = [without_owner(t) for t in tensors[: index + 1]]
    assert [at for at, _, _ in layout(pool.id)] == [pool.keep.data_ptr()]


def test_a_recording_goes_on_from_there(pool):
    """A second graph recorded after going back replays together with the first"""
    with pool.recording():
        x = torch.full((MIB,), 2.0, device="cuda")
    state = pool.checkpoint()
    first = torch.cuda.CUDAGraph()
    with torch.cuda.graph(first, pool=pool.id, stream=pool.stream):
        y = x * 3
    first.replay()
    torch.cuda.synchronize()
    assert y.mean().item() == 6.0
    x = without_owner(x)
    pool.back_to(state, stale=[y], live=[x])
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=pool.id, stream=pool.stream):
        z = x * 5
    x.fill_(4.0)
    second.replay()
    torch.cuda.synchronize()
    assert z.mean().item() == 20.0
    del y, z, first, second


def test_allocations_of_another_thread_stay_outside(pool):
    """Only the thread that records allocates from the pool"""
    import threading

    elsewhere = []
    with pool.recording():
        inside = bytes_on_device(MIB)
        thread = threading.Thread(target=lambda: elsewhere.append(bytes_on_device(MIB)))
        thread.start()
        thread.join()
    addresses = [at for at, _, _ in layout(pool.id)]
    assert inside.data_ptr() in addresses and elsewhere[0].data_ptr() not in addresses
