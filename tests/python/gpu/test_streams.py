"""Streams"""

import pytest

torch = pytest.importorskip("torch")

MIB = 1 << 20
LONG = 50_000_000  # cycles; some 25 ms


def test_record_stream():
    """Memory given to `record_stream` is not handed out before that stream is done with it"""
    side = torch.cuda.Stream()
    for round in range(12):
        n = (1 << 12) + round * 300_000
        x = torch.full((n,), 1.0, device="cuda")
        seen = torch.empty(n, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG)
            seen.copy_(x)
        x.record_stream(side)
        del x
        others = [torch.full((n,), 2.0, device="cuda") for _ in range(3)]
        torch.cuda.synchronize()
        assert seen.min().item() == seen.max().item() == 1.0
        del others


def test_record_stream_on_a_view():
    """Also through a view that begins further in"""
    side = torch.cuda.Stream()
    x = torch.full((4 * MIB,), 1.0, device="cuda")
    view = x[MIB:]
    seen = torch.empty_like(view)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        seen.copy_(view)
    view.record_stream(side)
    del x, view
    other = torch.full((4 * MIB,), 2.0, device="cuda")
    torch.cuda.synchronize()
    assert seen.min().item() == seen.max().item() == 1.0 and other.min().item() == 2.0


def test_several_streams_use_one_block():
    """Every stream that was recorded is waited for"""
    sides = [torch.cuda.Stream() for _ in range(4)]
    x = torch.full((2 * MIB,), 1.0, device="cuda")
    seen = [torch.empty_like(x) for _ in sides]
    for index, side in enumerate(sides):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(LONG * (index + 1) // 2)
            seen[index].copy_(x)
        x.record_stream(side)
    del x
    for _ in range(20):
        torch.full((2 * MIB,), 2.0, device="cuda")
    torch.cuda.synchronize()
    assert all(s.min().item() == s.max().item() == 1.0 for s in seen)


def test_free_memory_stays_in_its_streams_order():
    """Memory freed with work pending on its stream is not handed to another stream before that work is over"""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    for n in (1000, MIB // 4, 3 * MIB, 8 * MIB):
        with torch.cuda.stream(first):
            x = torch.empty(n, device="cuda")
            torch.cuda._sleep(LONG)
            x.fill_(1.0)
            del x
        with torch.cuda.stream(second):
            ys = [torch.empty(n, device="cuda").fill_(2.0) for _ in range(4)]
        torch.cuda.synchronize()
        assert all(y.min().item() == y.max().item() == 2.0 for y in ys)


def test_same_stream_reuse():
    """Memory freed on a stream is used again on it at once"""
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            x = torch.empty(64 * MIB, device="cuda")
            del x
            reserved = torch.cuda.memory_reserved()
            for _ in range(5):
                torch.cuda._sleep(1_000_000)
                torch.empty(64 * MIB, device="cuda").fill_(1)
            assert torch.cuda.memory_reserved() == reserved


def test_recording_the_own_stream_changes_nothing():
    """Recording the stream that a block was allocated on is no reason to wait"""
    x = torch.empty(4 * MIB, device="cuda")
    torch.cuda._sleep(LONG)
    x.record_stream(torch.cuda.current_stream())
    del x
    stats = torch.cuda.memory_stats()
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]


def test_pending_blocks_are_active():
    """Blocks whose free waits for a stream are counted as active, until it is done"""
    side = torch.cuda.Stream()
    x = torch.empty(4 * MIB, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20 * LONG)
        x.fill_(1)
    x.record_stream(side)
    del x
    stats = torch.cuda.memory_stats()
    assert stats["active_bytes.all.current"] >= stats["allocated_bytes.all.current"] + 16 * MIB
    states = [b["state"] for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
    assert states.count("active_pending_free") == 1
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    stats = torch.cuda.memory_stats()
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]


def test_many_streams():
    """A stream of one's own for every call"""
    results = []
    for i in range(80):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x = torch.full((MIB // 2,), float(i), device="cuda")
            y = x * 2
        torch.cuda.current_stream().wait_stream(stream)
        y.record_stream(torch.cuda.current_stream())
        results.append(y.mean())
        del x, y, stream
    assert [r.item() for r in results] == [2.0 * i for i in range(80)]


def test_priorities():
    """Streams with a priority"""
    low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(low):
        a = torch.full((MIB,), 1.0, device="cuda")
    with torch.cuda.stream(high):
        b = torch.full((MIB,), 2.0, device="cuda")
    torch.cuda.synchronize()
    assert a.mean().item() == 1.0 and b.mean().item() == 2.0


def test_external_stream():
    """Streams that torch did not make"""
    stream = torch.cuda.Stream()
    outside = torch.cuda.ExternalStream(stream.cuda_stream)
    with torch.cuda.stream(outside):
        x = torch.full((MIB,), 3.0, device="cuda")
    x.record_stream(outside)
    outside.synchronize()
    assert x.mean().item() == 3.0


def test_prefetch():
    """Batches copied ahead on one stream and used on another arrive whole"""
    copy = torch.cuda.Stream()
    batches = [torch.full((MIB,), float(i)).pin_memory() for i in range(10)]
    main = torch.cuda.current_stream()

    def fetch(i):
        with torch.cuda.stream(copy):
            return batches[i].to("cuda", non_blocking=True)

    following, sums = fetch(0), []
    for i in range(10):
        x = following
        main.wait_stream(copy)
        x.record_stream(main)
        following = fetch(i + 1) if i < 9 else None
        torch.cuda._sleep(2_000_000)
        sums.append((x * 2).mean())
        del x
    assert [s.item() for s in sums] == [2.0 * i for i in range(10)]


def test_between_devices():
    """Copies between devices, with and without peer access"""
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    x = torch.arange(4 * MIB, device="cuda:0")
    y = x.to("cuda:1")
    assert torch.equal(y.cpu(), x.cpu())
    with torch.cuda.device(1):
        side = torch.cuda.Stream(device=1)
        with torch.cuda.stream(side):
            z = y.to("cuda:0", non_blocking=True)
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    assert torch.equal(z.cpu(), x.cpu())
