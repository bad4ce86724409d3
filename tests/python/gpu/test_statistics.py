"""Statistics"""

import random

import pytest

torch = pytest.importorskip("torch")

import consistency

MIB = 1 << 20
PAGES = 4 * MIB  # where a block ends inside a page of the device, its neighbour may keep that page: one at each end


def bytes_on_device(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def test_all_keys():
    """`memory_stats()` has every key"""
    assert consistency.all_keys() <= set(torch.cuda.memory_stats())


def test_allocated_follows_tensors():
    """`memory_allocated()` follows each tensor, to the byte back"""
    before = torch.cuda.memory_allocated()
    requested = torch.cuda.memory_stats()["requested_bytes.all.current"]
    x = bytes_on_device(10 * MIB + 1)
    held = torch.cuda.memory_allocated() - before
    assert 10 * MIB + 1 <= held <= 10 * MIB + MIB
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] - requested == 10 * MIB + 1
    assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    del x
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] == requested


def test_a_tensor_without_elements_costs_nothing():
    """Tensors of no bytes have no memory"""
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    assert bytes_on_device(0).data_ptr() == 0
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_peaks():
    """Peaks are kept and can be reset"""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    x = bytes_on_device(32 * MIB)
    del x
    assert torch.cuda.max_memory_allocated() >= before + 32 * MIB
    assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == before
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()


def test_accumulated():
    """Accumulated figures count and can be reset"""
    bytes_on_device(MIB)
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.allocated"] > 0 and stats["allocated_bytes.all.freed"] >= MIB
    held = bytes_on_device(3 * MIB)
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.allocated"] == 0 and stats["allocated_bytes.all.freed"] == 0
    assert stats["allocated_bytes.all.current"] >= held.numel()


def test_equal_to_the_snapshot():
    """After every allocation and free the statistics equal the sums over the snapshot, and add up"""
    rng = random.Random(3)
    tensors, streams = [], [torch.cuda.Stream() for _ in range(2)]
    stats = None
    for step in range(150):
        if rng.random() < 0.55 or not tensors:
            size = rng.choice(
                [rng.randint(1, 4096), rng.randint(1, MIB), rng.randint(MIB, 9 * MIB), rng.randint(10 * MIB, 40 * MIB)]
            )
            tensors.append(bytes_on_device(size))
            if rng.random() < 0.2:
                tensors[-1].record_stream(rng.choice(streams))
        else:
            tensors.pop(rng.randrange(len(tensors)))
        if step % 40 == 39:
            torch.cuda.empty_cache()
        stats = consistency.check(torch, stats)


def test_empty_cache():
    """`empty_cache()` gives free memory back to the device"""
    x = bytes_on_device(256 * MIB)
    most = torch.cuda.memory_reserved()
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= most - 256 * MIB + PAGES


def test_accelerator():
    """`torch.accelerator` sees the same figures"""
    keep = bytes_on_device(5 * MIB)
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() >= keep.numel()
    assert torch.accelerator.memory_reserved() == torch.cuda.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == torch.cuda.max_memory_allocated()
    ours, theirs = torch.accelerator.memory_stats(), torch.cuda.memory_stats()
    assert ours["allocation.all.current"] == theirs["allocation.all.current"] > 0
    x = bytes_on_device(256 * MIB)
    del x
    most = torch.cuda.memory_reserved()
    torch.accelerator.empty_cache()
    # Part of it may have lain where `keep` lies, in memory that was bought for that: 16 MiB at a time.
    assert torch.cuda.memory_reserved() <= most - 256 * MIB + 16 * MIB
    torch.accelerator.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()


def test_summary():
    """`memory_summary()` prints its table"""
    text = torch.cuda.memory_summary()
    assert "Allocated memory" in text and "GPU reserved memory" in text
    assert torch.cuda.memory_summary(abbreviated=True)


def test_profiler():
    """The profiler is told of memory"""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        x = bytes_on_device(8 * MIB)
        del x
    most = max(getattr(event, "self_device_memory_usage", 0) for event in recorded.events())
    assert most >= 8 * MIB


def test_raw_allocations():
    """`caching_allocator_alloc` and `_delete` work and are counted"""
    before = torch.cuda.memory_allocated()
    pointer = torch.cuda.caching_allocator_alloc(4 * MIB, 0, torch.cuda.current_stream())
    assert pointer and torch.cuda.memory_allocated() >= before + 4 * MIB
    torch.cuda.caching_allocator_delete(pointer)
    assert torch.cuda.memory_allocated() == before


def test_cudnn_benchmark():
    """cuDNN's search for the fastest algorithm is told how much memory it may use"""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        convolution = torch.nn.Conv2d(8, 16, 3, padding=1).cuda()
        x = torch.randn(4, 8, 32, 32, device="cuda", requires_grad=True)
        convolution(x).sum().backward()
        torch.cuda.synchronize()
        assert x.grad is not None and torch.isfinite(x.grad).all()
    finally:
        torch.backends.cudnn.benchmark = before


def test_cache_off(program):
    """`caching_allocator_enable(False)` takes and returns each block at once, and old ones stay valid"""
    out = program("""
        import torch
        old = torch.full((1 << 20,), 3.0, device="cuda")
        torch.cuda.caching_allocator_enable(False)
        new = torch.full((1 << 20,), 4.0, device="cuda")
        torch.cuda.caching_allocator_enable(True)
        again = torch.full((1 << 20,), 5.0, device="cuda")
        print(old.mean().item(), new.mean().item(), again.mean().item())
        del old, new, again
        torch.cuda.synchronize()
    """)
    assert out == "3.0 4.0 5.0"


def test_no_caching_variable(program):
    """`PYTORCH_NO_CUDA_MEMORY_CACHING=1` is honoured"""
    out = program(
        """
        import torch
        x = torch.full((1 << 22,), 3.0, device="cuda")
        print(x.mean().item())
        del x
        torch.cuda.synchronize()
        assert torch.cuda.memory_reserved() == 0, "the block went back to the device"
    """,
        PYTORCH_NO_CUDA_MEMORY_CACHING=1,
    )
    assert out == "3.0"
