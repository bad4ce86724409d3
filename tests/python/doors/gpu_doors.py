#!/usr/bin/env python3
"""CuPy, Numba and tenure.Buffer on a GPU: one run, a line a check, `PASS name` or `FAIL name: why`.

    gpu_doors.py [NAME...]     those checks whose name contains a NAME; all without

TENURE_LIBRARY names libtenure.so.0. Exit: 0, 1 if a check failed, 77 if there is no GPU. What is not installed is `SKIP`.
"""

import functools
import gc
import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "src" / "python"))

import tenure  # noqa: E402
from tenure import _arenas  # noqa: E402
from tenure._library import TenureError  # noqa: E402

MIB = 1 << 20
CHECKS = []


def check(*needs):
    def register(function):
        CHECKS.append((function.__name__, needs, function))
        return function

    return register


def blocks(arena):
    gc.collect()
    return arena.stats(0)["blocks"]


def refuses(function, kind=tenure.OutOfMemory):
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


# --- tenure.Buffer --------------------------------------------------------------------------------------------------


@check()
def buffer_on_every_policy():
    for policy in tenure.policies():
        arena = tenure.arena("p_" + policy, "256MiB", policy=policy)
        with arena:
            held = [tenure.Buffer(n) for n in (1, 1000, MIB, 40 * MIB)]
            assert blocks(arena) == 4, policy
            error = refuses(lambda: tenure.Buffer(300 * MIB))
            assert error.arena == "p_" + policy, error
        del held, error
        assert blocks(arena) == 0, policy
        arena.destroy()


@check("torch")
def buffer_and_torch(torch):
    arena = tenure.arena("t", "256MiB")
    with arena:
        b = tenure.Buffer((256, 1024), "float32", stream=torch.cuda.current_stream().cuda_stream)
    x = torch.from_dlpack(b)
    assert x.data_ptr() == b.pointer and x.device.type == "cuda" and tuple(x.shape) == (256, 1024)
    x.fill_(3.0)
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        y = torch.from_dlpack(b)
        assert float(y.sum()) == 3.0 * 256 * 1024
    z = torch.as_tensor(b, device="cuda")
    assert z.data_ptr() == b.pointer
    del b, x, z
    assert blocks(arena) == 1
    del y
    assert blocks(arena) == 0
    arena.destroy()


@check("torch")
def memory_that_changes_hands_is_zero(torch):
    a, b = tenure.arena("from", policy="best_fit"), tenure.arena("to", policy="best_fit")
    with a:
        one = tenure.Buffer(64 * MIB)
    torch.from_dlpack(one).fill_(0x5A)
    torch.cuda.synchronize()
    del one
    gc.collect()
    a.trim()
    with b:
        two = tenure.Buffer(64 * MIB)
    assert int(torch.from_dlpack(two).max()) == 0
    assert b.stats(0)["scrubbed"] >= 64 * MIB, "the memory came from the driver: this shows nothing"
    del two
    gc.collect()
    a.destroy()
    b.destroy()


@check("torch")
def a_free_waits_for_another_stream(torch):
    """A block used on a slow stream and freed is not handed out before that work has passed."""
    arena = tenure.arena("w", policy="best_fit")
    slow = torch.cuda.Stream()
    again = 0
    for _ in range(20):
        with arena:
            b = tenure.Buffer(MIB, "uint8")
        where = b.pointer
        with torch.cuda.stream(slow):
            x = torch.from_dlpack(b)  # says on which stream
            torch.cuda._sleep(5_000_000)
            x.fill_(7)
            seen = x.clone()
        del x, b
        with arena:
            c = tenure.Buffer(MIB, "uint8")
        again += c.pointer == where
        y = torch.from_dlpack(c)
        y.fill_(1)
        torch.cuda.synchronize()
        assert int(seen.min()) == int(seen.max()) == 7
        assert int(y.min()) == int(y.max()) == 1, "the slow stream wrote after the free"
        del y, c, seen
        gc.collect()
    assert again != 0, "the same memory was never had again: this shows nothing"
    arena.destroy()


@check("cupy")
def a_stream_that_is_gone_before_the_free(cupy):
    """Its owner may end it once its work is over: DLPack hands over a number and no owner."""
    arena = tenure.arena("g", "256MiB")
    for own in (0, "stream"):
        for _ in range(20):
            stream = cupy.cuda.Stream(non_blocking=True)
            with arena:
                b = tenure.Buffer(MIB, "uint8", stream=stream if own else 0)
            with stream:
                x = cupy.from_dlpack(b)
                x.fill(3)
            stream.synchronize()
            assert int(x.max()) == 3
            if own:
                del b, stream
                gc.collect()
                del x
            else:
                del stream
                del x, b
    assert blocks(arena) == 0
    arena.destroy()


@check("torch")
def an_export_stands_behind_the_buffers_work(torch):
    """What the buffer's own stream has still to do is done before the consumer's stream goes on, unless that is refused (-1)."""
    arena = tenure.arena("o", "256MiB")
    slow, other = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(5):
        with arena:
            b = tenure.Buffer(MIB, "uint8", stream=slow)
        x = torch.from_dlpack(b)
        torch.cuda.synchronize()
        with torch.cuda.stream(slow):
            torch.cuda._sleep(50_000_000)
            x.fill_(5)
        with torch.cuda.stream(other):
            y = torch.from_dlpack(b).clone()
        other.synchronize()
        assert int(y.min()) == int(y.max()) == 5
        del x, y, b
    assert blocks(arena) == 0
    arena.destroy()


NAP = """
extern "C" __global__ void nap(unsigned char* p, size_t n) {
    for (long long start = clock64(); clock64() - start < 200000000ll;) {}
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) p[i] = 7;
}
"""


@check("cupy")
def the_per_thread_default_stream_is_the_allocating_threads(cupy):
    """Freed in another thread, a block of it still waits for the work of the thread that allocated it."""
    import threading

    arena = tenure.arena("ptds", "64MiB", policy="best_fit")
    nap = cupy.RawKernel(NAP, "nap")
    per_thread = cupy.cuda.Stream.ptds
    held, results, failures = [], [], []
    launched, freed = threading.Event(), threading.Event()

    def allocate():
        block = arena.allocate(MIB, 2)
        memory = cupy.cuda.UnownedMemory(block.pointer, MIB, block, 0)
        x = cupy.ndarray(MIB, "uint8", cupy.cuda.MemoryPointer(memory, 0))
        with per_thread:
            nap((1,), (256,), (x, cupy.uint64(MIB)))
        held.append(block)
        launched.set()
        assert freed.wait(60)
        per_thread.synchronize()  # before the thread ends: see docs/doors/cupy.md

    def other():
        assert launched.wait(60)
        where = held[0].pointer
        held.pop().free()
        block = arena.allocate(MIB, 2)
        memory = cupy.cuda.UnownedMemory(block.pointer, MIB, block, 0)
        y = cupy.ndarray(MIB, "uint8", cupy.cuda.MemoryPointer(memory, 0))
        with per_thread:
            y.fill(1)
        cupy.cuda.runtime.deviceSynchronize()
        results.append((int(y.min()), int(y.max()), block.pointer == where))
        del y, memory
        block.free()

    def run(work, done):
        try:
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    threads = [threading.Thread(target=run, args=of) for of in ((allocate, launched), (other, freed))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert results and results[0][:2] == (1, 1), results
    gc.collect()
    arena.destroy()


# --- CuPy -----------------------------------------------------------------------------------------------------------


@check("cupy")
def cupy_allocates_from_the_arena(cupy):
    import tenure.cupy

    tenure.cupy.install()
    try:
        alice, bob = tenure.arena("alice", "256MiB"), tenure.arena("bob", "64MiB")
        with alice:
            x = cupy.arange(1 << 20, dtype=cupy.float32)
            y = (x * 2).sum()
            assert float(y) == float(1 << 20) * ((1 << 20) - 1)
            assert blocks(alice) >= 2
            with bob:
                z = cupy.ones((1024, 1024), dtype=cupy.float32)
                error = refuses(lambda: cupy.empty(100 * MIB, dtype=cupy.uint8), cupy.cuda.memory.OutOfMemoryError)
                assert isinstance(error, tenure.OutOfMemory) and error.arena == "bob", error
                assert "64 MiB" in str(error)
        w = cupy.zeros(1000)
        assert blocks(tenure.arena("default")) == 1
        del x, y, z, w, error
        cupy.cuda.runtime.deviceSynchronize()
        assert (blocks(alice), blocks(bob)) == (0, 0), (alice.stats(0), bob.stats(0))
        alice.destroy()
        bob.destroy()
    finally:
        tenure.cupy.uninstall()


@check("cupy")
def cupy_streams(cupy):
    import tenure.cupy

    arena = tenure.arena("cs", "1GiB")
    with arena, cupy.cuda.using_allocator(tenure.cupy.malloc):
        for i in range(50):
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                a = cupy.full(1 << 20, i, dtype=cupy.int32)
                b = a + 1
                del a
                c = cupy.full(1 << 20, -1, dtype=cupy.int32)
                assert int(b.min()) == int(b.max()) == i + 1 and int(c.max()) == -1
            side = cupy.cuda.Stream(non_blocking=True)
            side.wait_event(stream.record())
            with side:
                d = b * 2
                tenure.cupy.record_use(b)
            del b, c, stream
            assert int(d.min()) == 2 * (i + 1)
            del d
    cupy.cuda.runtime.deviceSynchronize()
    assert blocks(arena) == 0
    arena.destroy()


@check("cupy")
def cupy_gives_and_takes_dlpack(cupy):
    arena = tenure.arena("cd", "256MiB")
    with arena:
        b = tenure.Buffer((64, 64), "float64")
    x = cupy.from_dlpack(b)
    y = cupy.asarray(b)  # the CUDA array interface
    x[...] = 5
    assert float(y.sum()) == 5 * 64 * 64 and y.data.ptr == b.pointer
    del b, x, y
    assert blocks(arena) == 0
    arena.destroy()


# --- Numba ----------------------------------------------------------------------------------------------------------

NUMBA = """
import sys
sys.path[:0] = [{source!r}, {here!r}]
import ipc_child
import numpy as np
from numba import cuda
import tenure
{install}

@cuda.jit
def add(x, y):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += y[i]

arena = tenure.arena("n", "128MiB", policy="caching")
with arena:
    n = 1 << 20
    x = cuda.to_device(np.arange(n, dtype=np.float32))
    y = cuda.to_device(np.ones(n, dtype=np.float32))
    z = cuda.device_array(n, dtype=np.float32)
    assert arena.stats(0)["blocks"] == 3, arena.stats(0)
    stream = cuda.stream()
    add[n // 256, 256, stream](x, y)
    stream.synchronize()
    assert x.copy_to_host()[-1] == n
    info = cuda.current_context().get_memory_info()
    assert info.total == 128 << 20 and info.free <= info.total, info
    try:
        cuda.device_array(200 << 20, dtype=np.uint8)
        raise SystemExit("no limit")
    except tenure.OutOfMemory as error:
        assert error.arena == "n"
    import multiprocessing
    there = multiprocessing.get_context("spawn")
    answers = there.Queue()
    handle = x.get_ipc_handle()
    child = there.Process(target=ipc_child.look, args=(handle, answers))
    child.start()
    child.join(100)
    assert child.exitcode == 0 and answers.get(timeout=10) == (1.0, float(n)), child.exitcode
    del handle, x, y, z
import gc; gc.collect()
assert arena.stats(0)["blocks"] == 0, arena.stats(0)
print("ok")
"""


@functools.cache
def numba_does_not_fit():
    """What of NumPy Numba misses when it first compiles, with or without tenure; None where it misses nothing."""
    code = "from numba import cuda; cuda.jit('void(int32[:])')(lambda x: None)"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CUDA_MEMORY_MANAGER"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    return last if done.returncode != 0 and "module 'numpy' has no attribute" in last else None


def run_numba(install, **environment):
    code = NUMBA.format(source=str(Path(tenure.__file__).resolve().parents[1]), here=str(Path(__file__).resolve().parent), install=install)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stdout.strip().endswith("ok"), done.stdout[-500:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]


@check("numba.cuda")
def numba_by_install(_):
    run_numba("import tenure.numba; tenure.numba.install()")


@check("numba.cuda")
def numba_by_the_environment(_):
    source = str(Path(tenure.__file__).resolve().parents[1])
    run_numba("", NUMBA_CUDA_MEMORY_MANAGER="tenure.numba", PYTHONPATH=source + os.pathsep + os.environ.get("PYTHONPATH", ""))


@check("numba.cuda")
def numba_takes_a_buffer(numba_cuda):
    arena = tenure.arena("nb", "64MiB")
    with arena:
        b = tenure.Buffer(1000, "int32")
    x = numba_cuda.as_cuda_array(b)
    x[:] = 4
    assert x.copy_to_host().sum() == 4000
    del x, b
    assert blocks(arena) == 0
    arena.destroy()


# --- all of them at once --------------------------------------------------------------------------------------------


@check("cupy", "torch")
def one_tenant_across_libraries(cupy, torch):
    """What one library allocates is refused to the other: they share the arena's limit."""
    import tenure.cupy

    arena = tenure.arena("both", "100MiB")
    with arena, cupy.cuda.using_allocator(tenure.cupy.malloc):
        x = cupy.zeros(60 * MIB, dtype=cupy.uint8)
        refuses(lambda: tenure.Buffer(60 * MIB))
        t = torch.from_dlpack(x)
        t.fill_(9)
        torch.cuda.synchronize()
        assert int(x.max()) == 9
        del x, t
        gc.collect()
        assert tenure.Buffer(60 * MIB).pointer
    gc.collect()
    arena.destroy()


def main(wanted):
    try:
        where = _arenas.device("cuda:0")
    except TenureError as error:
        print(f"SKIP everything: {error}")
        return 77
    print(f"-- {where.name}: {where.memory()}, {tenure._native.load().path}, tenure {tenure.__version__}")
    failed = 0
    for name, needs, function in CHECKS:
        if wanted and not any(w in name for w in wanted):
            continue
        try:
            modules = [importlib.import_module(need) for need in needs]
            if "numba.cuda" in needs and (missing := numba_does_not_fit()):
                raise ImportError(missing)
        except Exception as error:  # also of a module that is there and does not fit what is beside it
            print(f"SKIP {name}: {type(error).__name__}: {error}", flush=True)
            continue
        versions = " ".join(f"{m.__name__} {getattr(m, '__version__', '')}" for m in modules)
        try:
            function(*modules)
            print(f"PASS {name} {versions}", flush=True)
        except BaseException as error:
            failed += 1
            print(f"FAIL {name} {versions}: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
            sys.stderr.flush()
    print(f"-- {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
