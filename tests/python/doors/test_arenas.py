"""Arenas for Python, on the simulated device."""

import asyncio
import gc
import threading

import pytest

import tenure
from tenure._library import TenureError

MIB = 1 << 20


def blocks(arena):
    return arena.stats("sim")["blocks"]


def test_every_function_of_the_header_is_declared(native):
    import re

    from places import ROOT
    from tenure import _native

    header = (ROOT / "include/tenure/tenure.h").read_text()
    declared = set(re.findall(r"TENURE_API [^;]*?tenure_(\w+)\(", header))
    assert declared == set(_native._FUNCTIONS)


def test_structs_are_as_large_as_the_librarys(native):
    import ctypes

    from tenure import _native

    arena = tenure.arena("structs")
    handle = arena.handle(tenure._arenas.device("sim"))
    statistics = _native.Statistics(size=4096)  # a caller of the future: the library says how large its own is
    buffer = (ctypes.c_char * 4096).from_buffer(bytearray(4096))
    ctypes.memmove(buffer, ctypes.byref(statistics), ctypes.sizeof(statistics))
    native.call("get_statistics", handle, ctypes.cast(buffer, ctypes.POINTER(_native.Statistics)))
    assert _native.Statistics.from_buffer(buffer).size == ctypes.sizeof(_native.Statistics)
    arena.destroy()


def test_the_limit_holds_and_says_whose_it_was(alice):
    with alice:
        held = [tenure.Buffer(20 * MIB, device="sim") for _ in range(3)]
        with pytest.raises(tenure.OutOfMemory) as caught:
            tenure.Buffer(20 * MIB, device="sim")
    assert caught.value.arena == "alice" and caught.value.cause == "arena_limit"
    assert caught.value.max == 64 * MIB and caught.value.requested == 20 * MIB
    assert isinstance(caught.value, MemoryError) and "64 MiB" in str(caught.value)
    del held, caught
    gc.collect()
    assert blocks(alice) == 0
    assert alice.trim() > 0 and alice.stats("sim")["charged"] == 0


def test_memory_goes_to_the_arena_that_is_entered_and_back_to_where_it_came_from(alice):
    bob = tenure.arena("bob", "32MiB")
    with alice:
        a = tenure.Buffer(MIB, device="sim")
        with bob:
            b = tenure.Buffer(MIB, device="sim")
            assert b.arena is bob
        again = tenure.Buffer(MIB, device="sim")
        assert (blocks(alice), blocks(bob)) == (2, 1)
    outside = tenure.Buffer(MIB, device="sim")
    assert outside.arena.path == "default"
    with bob:
        del a, again
    assert (blocks(alice), blocks(bob)) == (0, 1)
    del b, outside
    bob.destroy()


def test_threads_and_tasks_have_an_arena_each(alice):
    seen = {}

    def work():
        seen["thread"] = tenure._arenas.current().path

    async def task(arena):
        with arena:
            await asyncio.sleep(0.001)
            return tenure._arenas.current().path

    async def both():
        return await asyncio.gather(task(alice), task(tenure.arena("bob")))

    with alice:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen["thread"] == "default"
        assert asyncio.run(both()) == ["alice", "bob"]
        assert tenure._arenas.current() is alice


def test_trees(native):
    tenure.group("gpu", "48MiB")
    a = tenure.arena("gpu/a")
    b = tenure.arena("gpu/b", "32MiB", weight=200)
    with a:
        held = tenure.Buffer(32 * MIB, device="sim")
    with b, pytest.raises(tenure.OutOfMemory) as caught:
        tenure.Buffer(24 * MIB, device="sim")
    assert caught.value.arena == "gpu" and caught.value.cause == "ancestor_limit"
    rows = {row["path"]: row for row in tenure.arenas("sim")}
    assert rows["gpu"]["kind"] == "group" and rows["gpu/b"]["weight"] == 200 and rows["gpu/a"]["blocks"] == 1
    with pytest.raises(TenureError, match="stand below"):
        tenure.group("gpu").destroy()
    with pytest.raises(TenureError, match="live block"):
        a.destroy()
    a.destroy(release=True)
    del held
    b.destroy()
    tenure.group("gpu").destroy()


def test_settings(alice):
    assert tenure.arena("alice") is alice
    with pytest.raises(TenureError, match="other settings"):
        tenure.arena("alice", max="1MiB")
    with pytest.raises(TenureError, match="is there already"):
        tenure.group("alice")
    with alice:
        tenure.Buffer(1, device="sim")
    alice.set(max="128MiB", weight=50)
    assert alice.stats()["max"] == 128 * MIB and alice.stats()["weight"] == 50
    alice.set(max=None)
    assert alice.stats()["max"] is None
    with pytest.raises(TypeError, match="known: max"):
        alice.set(maximum=1)
    with pytest.raises(ValueError, match="GB"):
        alice.set(max="1GB")
    with pytest.raises(TypeError, match="options belong to a policy"):
        tenure.arena("x", slack_divisor=10)
    wrong = tenure.arena("wrong", policy="caching", colour="red")
    with pytest.raises(TenureError, match="has no option"):
        wrong.allocate(1, on="sim")
    wrong.destroy()
    right = tenure.arena("right", policy="caching", max_split="64MiB")
    assert right.allocate(1, on="sim").pointer != 0
    right.destroy()


def test_freed_twice(alice):
    block = alice.allocate(100, on="sim")
    pointer = block.pointer
    block.free()
    block.free()  # nothing
    block._once.append(pointer)
    with pytest.raises(tenure.Misuse):
        block.free()


def test_a_picture(alice):
    block = alice.allocate(1000, on="sim")
    live = [b for s in alice.snapshot("sim")["segments"] for b in s["blocks"] if b["state"] == "allocated"]
    assert [(b["address"], b["requested"]) for b in live] == [(block.pointer, 1000)]


def test_policies(native):
    assert {"remap", "caching", "best_fit", "async"} <= set(tenure.policies())


def test_what_is_missing_is_said(run_python, tmp_path):
    said = run_python("-c", "import tenure\ntenure.Buffer(1)")
    assert "ImportError" in said.stderr and "TENURE_LIBRARY" in said.stderr
    said = run_python("-c", "import tenure\ntenure.Buffer(1)", TENURE_LIBRARY=tmp_path)
    assert "there is no" in said.stderr
    said = run_python("-c", "import tenure, sys; print('ctypes' in sys.modules, 'tenure._native' in sys.modules)")
    assert said.stdout.split() == ["False", "False"]


def test_the_end_of_the_program_with_memory_alive(native, run_python):
    said = run_python("-c", (
        "import tenure\n"
        "with tenure.arena('a'): keep = [tenure.Buffer(1000, device='sim') for _ in range(10)]\n"
        "class Cycle: pass\n"
        "c = Cycle(); c.c = c; c.b = keep[0]\n"
    ), TENURE_LIBRARY=native.path)  # fmt: skip
    assert said.returncode == 0 and said.stderr == ""


def test_a_stream_outlives_the_blocks_that_name_it(native):
    """Also where both are garbage of one cycle, which the collector ends in any order."""
    order = []

    class Stream:
        def __init__(self):
            self.handle = tenure._arenas.device("sim").create_stream()

        def __del__(self):
            order.append("stream")

    class Block(tenure._arenas.Block):
        def _free(self, pointer):
            order.append("block")
            return super()._free(pointer)

    class Worker:
        pass

    worker = Worker()
    worker.stream = Stream()  # older than the block, so the collector comes to it first
    block = tenure.arena("cycle").allocate(1000, worker.stream.handle, "sim")
    worker.block = Block(block.arena, block.device, block._handle, block._once.pop(), block.size, block.stream)
    worker.block.hold(worker.stream)
    worker.block.hold(worker.stream)
    worker.itself = worker
    del worker
    gc.collect()
    assert order == ["block", "stream"]
    assert blocks(tenure.arena("cycle")) == 0
    assert not tenure._arenas._held


def test_destroyed_while_other_threads_use_it(native):
    """Each call finds it there or gone; none is in it when it goes."""
    wrong, stop = [], threading.Event()

    def use():
        while not stop.is_set():
            try:
                arena = tenure.arena("busy", "64MiB")
                blocks = [arena.allocate(1000, on="sim") for _ in range(3)]
                blocks[0].free()
                arena.stats("sim")
                arena.trim()
                with arena:
                    buffer = tenure.Buffer(1000, device="sim")
                buffer.__dlpack__()
                del blocks, buffer
            except TenureError as error:
                if "destroyed" not in str(error):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(300):
        try:
            tenure.arena("busy", "64MiB").destroy(release=i % 2 == 0)
        except TenureError as error:
            if "live block" not in str(error):
                wrong.append(error)
    stop.set()
    for thread in threads:
        thread.join()
    gc.collect()
    tenure.arena("busy", "64MiB").destroy()
    assert not wrong, wrong[:3]


def test_two_threads_free_the_same_block(alice):
    for _ in range(200):
        block = alice.allocate(1000, on="sim")
        barrier = threading.Barrier(2)

        def free(block=block, barrier=barrier):
            barrier.wait()
            block.free()

        threads = [threading.Thread(target=free) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert blocks(alice) == 0


def test_a_finaliser_does_not_replace_the_last_error(native):
    arena = tenure.arena("finalised")
    block = arena.allocate(100, on="sim")
    library = tenure._arenas.device("sim").library
    arena.destroy(release=True)
    assert library.arena_set(None, b"", None) != 0
    text = library.last_error()
    del block
    gc.collect()
    assert library.last_error() == text


def test_one_gpu_has_one_name(native, monkeypatch):
    made = []

    class Stub:
        def __init__(self, name):
            made.append(name)

    monkeypatch.setattr(tenure._arenas, "Device", Stub)
    monkeypatch.setattr(tenure._arenas, "_devices", {})
    first = tenure._arenas.device("cuda:00")
    assert all(tenure._arenas.device(name) is first for name in ("cuda", "cuda:0", 0)) and made == ["cuda:0"]


def test_a_child_has_devices_of_its_own(native, run_python):
    said = run_python("-c", (
        "import os, tenure\n"
        "arena = tenure.arena('a', '8MiB'); b = arena.allocate(1000, on='sim'); c = arena\n"
        "with arena: d = tenure.Buffer(1000, device='sim')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert tenure._native.load().free(b._handle, 0, b.pointer, 1000) == 8, 'the parent\\'s handle'\n"
        "    e = arena.allocate(5 << 20, on='sim')\n"
        "    assert arena.stats('sim')['blocks'] == 1\n"
        "    del b, d, e\n"
        "    os._exit(0 if arena.stats('sim')['blocks'] == 0 else 3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert arena.stats('sim')['blocks'] == 2; del b, d; assert arena.stats('sim')['blocks'] == 0\n"
    ), TENURE_LIBRARY=native.path)  # fmt: skip
    assert (said.returncode, said.stderr) == (0, "")


def test_sizes_and_names_that_cannot_be(native):
    arena = tenure.arena("checked")
    for size in (-1, 1 << 63, (1 << 64) + 5):
        with pytest.raises(ValueError, match="bytes"):
            arena.allocate(size, on="sim")
    for wrong in ("al\0ice", "al/\0"):
        with pytest.raises(ValueError, match="zero"):
            tenure.arena(wrong)
    with pytest.raises(ValueError, match="policy"):
        tenure.arena("checked2", policy="remap max=1TiB")


def test_a_suspended_generator_leaves_its_own_arena(native):
    def inside():
        with tenure.arena("generator"):
            yield
            yield

    steps = inside()
    next(steps)
    with tenure.arena("outer"):
        steps.close()
        assert tenure._arenas.current() is tenure.arena("outer")
    assert tenure._arenas.current() is not tenure.arena("outer")

