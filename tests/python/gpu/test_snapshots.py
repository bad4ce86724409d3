"""Snapshots and history"""

import pickle
import random

import pytest

torch = pytest.importorskip("torch")

MIB = 1 << 20


def bytes_on_device(n):
    return torch.empty(n, dtype=torch.uint8, device="cuda")


def record(**options):
    options = {"stacks": "python", "max_entries": 100_000, "clear_history": True, **options}
    torch.cuda.memory._record_memory_history(**options)


def history():
    return torch.cuda.memory._snapshot()["device_traces"][0]


def test_segments_and_blocks():
    """Segments and blocks have all their fields, and every tensor is found"""
    tensors = [bytes_on_device(n) for n in (100, 70_000, 3 * MIB, 40 * MIB)]
    blocks = {}
    for s in torch.cuda.memory_snapshot():
        assert {
            "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
            "segment_pool_id", "is_expandable", "frames", "blocks",
        } <= set(s)  # fmt: skip
        for b in s["blocks"]:
            assert {"address", "size", "requested_size", "state", "frames"} <= set(b)
            blocks[b["address"]] = b
    for t in tensors:
        block = blocks[t.data_ptr()]
        assert (block["state"], block["requested_size"]) == ("active_allocated", t.numel())
        assert block["size"] >= t.numel()


def test_order():
    """Segments come in order of their addresses"""
    keep = [bytes_on_device(n * MIB) for n in (30, 1, 60)]
    addresses = [s["address"] for s in torch.cuda.memory_snapshot()]
    assert addresses == sorted(addresses) and len(set(addresses)) == len(addresses) and keep


def test_history():
    """Each allocation and free is in the history, with the size that was asked for and the Python that did it"""
    record()
    x = bytes_on_device(12_345)
    address = x.data_ptr()
    del x
    mine = [
        e
        for e in history()
        if e.get("addr") == address and e["action"] in ("alloc", "free_requested", "free_completed")
    ]
    assert [e["action"] for e in mine] == ["alloc", "free_requested", "free_completed"]
    assert all(e["size"] == 12_345 for e in mine)
    assert any("test_snapshots.py" in f["filename"] for f in mine[0]["frames"])
    times = [e["time_us"] for e in history()]
    assert times == sorted(times) and times[0] > 1_500_000_000_000_000


def test_history_off():
    """Nothing is recorded when it is off"""
    record()
    torch.cuda.memory._record_memory_history(enabled=None)
    kept = len(history())
    bytes_on_device(MIB)
    assert len(history()) == kept


def test_history_is_bounded():
    """`max_entries` bounds the history: the newest stay"""
    record(max_entries=10)
    for _ in range(20):
        bytes_on_device(777)
    entries = history()
    assert len(entries) <= 10 and [e["size"] for e in entries if e["action"] == "alloc"][-1] == 777


def test_segments_in_the_history():
    """Segments that come and go are in the history"""
    record()
    x = bytes_on_device(300 * MIB)
    del x
    torch.cuda.empty_cache()
    actions = {e["action"] for e in history()}
    assert actions & {"segment_alloc", "segment_map"} and actions & {"segment_free", "segment_unmap"}


def test_out_of_memory_in_the_history():
    """A refused request is in the history, with what was free"""
    record()
    with pytest.raises(torch.cuda.OutOfMemoryError):
        bytes_on_device(1 << 50)
    (refused,) = [e for e in history() if e["action"] == "oom"]
    assert refused["size"] == 1 << 50 and refused["device_free"] > 0


def test_stacks_of_live_blocks():
    """Live blocks carry the stack that allocated them"""
    record()
    x = bytes_on_device(5 * MIB)
    (block,) = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == x.data_ptr()]
    assert any(f["name"] == "test_stacks_of_live_blocks" for f in block["frames"])


def test_cpp_stacks():
    """Stacks with C++ frames too"""
    record(stacks="all")
    x = bytes_on_device(5 * MIB)
    (block,) = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["address"] == x.data_ptr()]
    assert any("::" in f["name"] for f in block["frames"])


def test_metadata():
    """User metadata travels with the events"""
    record()
    torch.cuda.memory._set_memory_metadata("epoch 3")
    try:
        assert torch.cuda.memory._get_memory_metadata() == "epoch 3"
        x = bytes_on_device(4321)
    finally:
        torch.cuda.memory._set_memory_metadata("")
    (event,) = [e for e in history() if e["action"] == "alloc" and e["size"] == 4321]
    assert event["user_metadata"] == "epoch 3" and x.numel()


def test_replay():
    """The history, replayed, ends in the snapshot's blocks"""
    rng = random.Random(5)
    record()
    start = {
        b["address"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "active_allocated"
    }
    tensors, streams = [], [torch.cuda.current_stream(), torch.cuda.Stream()]
    for _ in range(300):
        if rng.random() < 0.6 or not tensors:
            with torch.cuda.stream(rng.choice(streams)):
                tensors.append(
                    bytes_on_device(
                        rng.choice([rng.randint(1, 9999), rng.randint(1, 4 * MIB), rng.randint(MIB, 30 * MIB)])
                    )
                )
        else:
            tensors.pop(rng.randrange(len(tensors)))
    whole = torch.cuda.memory._snapshot()
    live = {}
    for e in whole["device_traces"][0]:
        if e["action"] == "alloc":
            assert e["addr"] not in live
            live[e["addr"]] = e["size"]
        elif e["action"] == "free_requested":
            live.pop(e["addr"], None)
    shown = {
        b["address"]: b["requested_size"]
        for s in whole["segments"] for b in s["blocks"] if b["state"] == "active_allocated" and b["address"] not in start
    }  # fmt: skip
    assert live == shown


def test_dump_and_convert(tmp_path):
    """`_dump_snapshot` writes plain data, which becomes a trace"""
    from tenure import trace

    before = bytes_on_device(MIB)
    record()
    tensors = [bytes_on_device(n) for n in (100, 5000, 2 * MIB)]
    del before, tensors[1]
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    made = trace.convert(path)
    assert made.gaps == 0 and made.live_at_start >= 1
    assert [e.bytes for e in made.events if e.op == "a"][-3:] == [100, 5000, 2 * MIB]
    assert [e.bytes for e in made.events if e.op == "f"] == [MIB, 5000]
    made.write(tmp_path / "trace.csv.gz")


def test_memory_viz(tmp_path):
    """torch's own viewers take it"""
    from torch.cuda import _memory_viz as viz

    record()
    keep = [bytes_on_device(n) for n in (100, 3 * MIB, 30 * MIB)]
    del keep[0]
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    whole = pickle.loads(path.read_bytes())

    def plain(lines):
        return lines

    assert "test_snapshots.py" in viz.memory(whole, format_flamegraph=lambda lines, **_: lines)
    assert viz.segments(whole, format_flamegraph=plain)
    assert "<html" in viz.trace_plot(whole).lower() or "<!doctype" in viz.trace_plot(whole).lower()
    assert viz.segment_plot(whole)
    assert viz.segsum(whole) and viz.trace(whole)


def test_settings():
    """The allocator's settings are part of it"""
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert {"PYTORCH_CUDA_ALLOC_CONF", "max_split_size", "expandable_segments"} <= set(settings)


def test_of_one_pool():
    """A snapshot of one pool has that pool only"""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = bytes_on_device(MIB)
    y = bytes_on_device(MIB)
    blocks = {b["address"] for s in torch.cuda.memory_snapshot(pool.id) for b in s["blocks"]}
    assert x.data_ptr() in blocks and y.data_ptr() not in blocks


def test_from_many_threads():
    """Recording and taking snapshots while other threads allocate"""
    import threading

    record(stacks="python")
    stop, errors = threading.Event(), []

    def work():
        try:
            while not stop.is_set():
                tensors = [bytes_on_device(n) for n in (1000, 50_000, 2 * MIB)]
                del tensors
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    try:
        for _ in range(15):
            whole = torch.cuda.memory._snapshot()
            assert whole["segments"] and whole["device_traces"][0]
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert errors == []


def test_sanitizer(program):
    """The stream sanitizer is told of allocations and frees"""
    out = program("""
        import torch
        import torch.cuda._gpu_trace as gpu_trace
        torch._C._activate_gpu_trace()
        events = []
        gpu_trace.register_callback_for_memory_allocation(lambda address: events.append(("alloc", address)))
        gpu_trace.register_callback_for_memory_deallocation(lambda address: events.append(("free", address)))
        x = torch.empty(1000, device="cuda")
        address = x.data_ptr()
        del x
        print([kind for kind, at in events if at == address])
    """)
    assert out == "['alloc', 'free']"
