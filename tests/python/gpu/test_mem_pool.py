"""`torch.cuda.MemPool`"""

import gc
import threading

import pytest

torch = pytest.importorskip("torch")

import allocators

MIB = 1 << 20


def bytes_on_device(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def holds(pool, tensor):
    at = tensor.data_ptr()
    return any(s["address"] <= at < s["address"] + s["total_size"] for s in pool.snapshot())


def reserved(pool):
    return sum(s["total_size"] for s in pool.snapshot())


def test_ids():
    """Pools have ids of their own, apart from those of graphs"""
    pools = [torch.cuda.MemPool() for _ in range(3)]
    assert len({p.id for p in pools}) == 3 and all(p.id[0] == 0 and p.id[1] > 0 for p in pools)
    handle = torch.cuda.graph_pool_handle()
    assert handle not in {p.id for p in pools}


def test_routing():
    """Allocations inside come from the pool, others do not"""
    pool = torch.cuda.MemPool()
    before = bytes_on_device(MIB)
    with torch.cuda.use_mem_pool(pool):
        inside = [bytes_on_device(n) for n in (100, 3 * MIB, 30 * MIB)]
    after = bytes_on_device(MIB)
    assert all(holds(pool, t) for t in inside)
    assert not holds(pool, before) and not holds(pool, after)
    assert all(tuple(s["segment_pool_id"]) == tuple(pool.id) for s in pool.snapshot())


def test_memory_stays_in_the_pool():
    """What the pool has freed is used again inside, and not outside"""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = bytes_on_device(64 * MIB)
    del x
    held = reserved(pool)
    assert held >= 64 * MIB
    outside = bytes_on_device(64 * MIB)
    assert not holds(pool, outside)
    with torch.cuda.use_mem_pool(pool):
        again = bytes_on_device(64 * MIB)
    assert holds(pool, again) and reserved(pool) == held


def test_a_pool_that_is_gone_gives_back():
    """A pool's memory goes back to the device when pool and tensors are gone"""
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = bytes_on_device(256 * MIB)
    del x
    assert torch.cuda.memory_reserved() >= before + 256 * MIB
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + 4 * MIB


def test_tensors_outlive_their_pool():
    """A tensor stays valid when its pool is gone"""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((MIB,), 5.0, device="cuda")
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    garbage = [torch.full((MIB,), 9.0, device="cuda") for _ in range(4)]
    assert x.min().item() == x.max().item() == 5.0
    del x, garbage


def test_use_count():
    """`use_count()` counts users"""
    pool = torch.cuda.MemPool()
    alone = pool.use_count()
    assert alone >= 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == alone + 1
    assert pool.use_count() == alone


def test_nested():
    """The innermost pool is the one that serves"""
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        a = bytes_on_device(MIB)
        with torch.cuda.use_mem_pool(inner):
            b = bytes_on_device(MIB)
        c = bytes_on_device(MIB)
    d = bytes_on_device(MIB)
    assert holds(outer, a) and holds(inner, b) and holds(outer, c)
    assert not holds(inner, a) and not holds(outer, b) and not holds(outer, d)


def test_threads():
    """Each thread has its own pool, at the same time"""
    pools = [torch.cuda.MemPool() for _ in range(6)]
    results, meet = [None] * len(pools), threading.Barrier(len(pools))

    def work(i):
        with torch.cuda.use_mem_pool(pools[i]):
            meet.wait()
            results[i] = [bytes_on_device(MIB + i) for _ in range(10)]
            meet.wait()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(pools))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, pool in enumerate(pools):
        assert all(holds(pool, t) for t in results[i])
        assert not any(holds(pool, t) for j, ts in enumerate(results) if j != i for t in ts)


def test_custom_allocator():
    """A pool over an allocator of one's own takes its segments from there, and gives them back"""
    taken, returned = allocators.source_counts()
    path = allocators.source_library()
    source = torch.cuda.memory.CUDAPluggableAllocator(path, "source_malloc", "source_free")
    pool = torch.cuda.MemPool(source.allocator())
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.full((MIB // 4,), float(i), device="cuda") for i in range(10)]
    now = allocators.source_counts()[0]
    assert now > taken
    assert [t.mean().item() for t in tensors] == [float(i) for i in range(10)]
    outside = bytes_on_device(64 * MIB)
    assert allocators.source_counts()[0] == now and not holds(pool, outside)
    del tensors
    torch.cuda.empty_cache()
    with torch.cuda.use_mem_pool(pool):
        bytes_on_device(MIB)
    del pool
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    taken_now, returned_now = allocators.source_counts()
    assert taken_now - taken == returned_now - returned


def test_use_on_oom(allow):
    """With `use_on_oom` a pool's free memory is the last resort of requests outside"""
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        x = bytes_on_device(256 * MIB)
    del x
    allow(16 * MIB)
    y = bytes_on_device(200 * MIB).fill_(3)
    assert y.min().item() == 3
    del y


def test_not_used_on_oom(allow):
    """Without, it is not"""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = bytes_on_device(256 * MIB)
    del x
    allow(16 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        bytes_on_device(200 * MIB)
    assert pool.id


def test_a_deleted_pool_is_not_used_on_oom(allow):
    """And a pool that is gone is no resort: a tensor in it keeps its memory"""
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((64 * MIB,), 5.0, device="cuda")
    del pool
    gc.collect()
    allow(16 * MIB)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        bytes_on_device(512 * MIB)
    assert x.min().item() == 5.0


def test_no_split():
    """With `no_split` a block is never divided"""
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        x = bytes_on_device(8 * MIB)
        del x
        tensors = [bytes_on_device(n) for n in (2 * MIB, 2 * MIB, 500, 500)]
    segments = [s for s in pool.snapshot() if any(b["state"] == "active_allocated" for b in s["blocks"])]
    assert len(segments) == len(tensors)
    assert all(len(s["blocks"]) == 1 for s in segments)


def test_empty_cache_of_an_unused_pool():
    """`empty_cache()` does not take a living pool's memory away from it while it is used"""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((4 * MIB,), 1.0, device="cuda")
        torch.cuda.empty_cache()
        y = torch.full((4 * MIB,), 2.0, device="cuda")
    torch.cuda.empty_cache()
    assert x.mean().item() == 1.0 and y.mean().item() == 2.0 and holds(pool, x) and holds(pool, y)


def test_graphs_in_a_pool():
    """Graphs can be captured into a pool"""
    pool = torch.cuda.MemPool()
    x = torch.ones(MIB, device="cuda")
    graphs = []
    for factor in (2, 3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool.id):
            y = x * factor
        graphs.append((graph, y, factor))
    for graph, y, factor in graphs:
        graph.replay()
        assert y.mean().item() == factor and holds(pool, y)


def test_record_stream_inside():
    """`record_stream` protects memory inside a pool as outside"""
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    with torch.cuda.use_mem_pool(pool):
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


def test_out_of_memory_inside(allow):
    """Out of memory inside a pool leaves it usable"""
    pool = torch.cuda.MemPool()
    allow(256 * MIB)
    with torch.cuda.use_mem_pool(pool):
        with pytest.raises(torch.cuda.OutOfMemoryError):
            bytes_on_device(1024 * MIB)
        assert bytes_on_device(64 * MIB).fill_(1).max().item() == 1
