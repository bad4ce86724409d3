"""tenure.Buffer: DLPack and the array interfaces. The consumer of DLPack is written here, in ctypes, from the standard."""

import ctypes
import gc

import pytest

import tenure
from tenure._library import TenureError


def python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


get_pointer = python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
set_name = python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
is_valid = python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", DELETER)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_ctx", ctypes.c_void_p), ("deleter", DELETER),
        ("flags", ctypes.c_uint64), ("dl_tensor", DLTensor),
    ]  # fmt: skip


def take(capsule, versioned):
    """What a consumer does: look, rename, and own it from then on."""
    form = DLManagedTensorVersioned if versioned else DLManagedTensor
    name = b"dltensor_versioned" if versioned else b"dltensor"
    assert is_valid(capsule, name)
    taken = form.from_address(get_pointer(capsule, name))
    used = b"used_" + name
    take.names.append(used)  # a capsule keeps no copy
    assert set_name(capsule, used) == 0
    return taken


take.names = []


def blocks(arena):
    return arena.stats("sim")["blocks"]


@pytest.mark.parametrize("versioned", [False, True])
def test_a_consumer_owns_the_memory(alice, versioned):
    with alice:
        b = tenure.Buffer((2, 3, 4), "float32", device="sim")
    capsule = b.__dlpack__(max_version=(1, 1) if versioned else None)
    taken = take(capsule, versioned)
    tensor = taken.dl_tensor
    assert tensor.data == b.pointer and tensor.byte_offset == 0
    assert (tensor.device_type, tensor.device_id) == (1, 0) == b.__dlpack_device__()
    assert tensor.shape[:3] == [2, 3, 4] and tensor.strides[:3] == [12, 4, 1] and tensor.ndim == 3
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
    if versioned:
        assert (taken.major, taken.flags) == (1, 0)
    del b, capsule
    gc.collect()
    assert blocks(alice) == 1
    taken.deleter(ctypes.addressof(taken))
    assert blocks(alice) == 0


def test_a_capsule_that_nobody_takes(alice):
    with alice:
        b = tenure.Buffer(10, device="sim")
    for version in (None, (1, 0)):
        capsule = b.__dlpack__(max_version=version)
        assert capsule is not None
        del capsule
    del b
    assert blocks(alice) == 0


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [("bool", 6, 8), ("int64", 0, 64), ("uint8", 1, 8), ("float16", 2, 16), ("bfloat16", 4, 16), ("complex64", 5, 64)],
)
def test_types(alice, dtype, code, bits):
    with alice:
        b = tenure.Buffer(3, dtype, device="sim")
    assert b.nbytes == 3 * bits // 8
    capsule = b.__dlpack__()
    tensor = DLManagedTensor.from_address(get_pointer(capsule, b"dltensor")).dl_tensor
    assert (tensor.code, tensor.bits) == (code, bits)


def test_what_it_refuses(alice):
    with alice:
        b = tenure.Buffer(3, device="sim")
        with pytest.raises(TypeError, match="float32"):
            tenure.Buffer(3, "float", device="sim")
        with pytest.raises(ValueError, match="negative"):
            tenure.Buffer((3, -1), device="sim")
        with pytest.raises(ValueError, match="more than"):
            tenure.Buffer((1 << 40, 1 << 40), device="sim")
    with pytest.raises(BufferError, match="stream"):
        b.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="not copied"):
        b.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy"):
        b.__dlpack__(copy=True)
    b.__dlpack__(dl_device=(1, 0), copy=False)
    assert not hasattr(b, "__cuda_array_interface__")
    b.free()
    with pytest.raises(BufferError, match="freed"):
        b.__dlpack__()


def test_nothing_and_a_scalar(alice):
    with alice:
        nothing = tenure.Buffer((0, 5), "float64", device="sim")
        scalar = tenure.Buffer((), "int32", device="sim")
    assert nothing.pointer == 0 and nothing.nbytes == 0 and blocks(alice) == 1
    assert scalar.nbytes == 4
    nothing.__dlpack__()
    scalar.__dlpack__()


def test_numpy(alice):
    numpy = pytest.importorskip("numpy")
    with alice:
        b = tenure.Buffer((100, 30), numpy.dtype("float64"), device="sim")
    x = numpy.from_dlpack(b)
    y = numpy.asarray(b)
    x[...] = numpy.arange(3000).reshape(100, 30)
    assert y.sum() == 2999 * 1500 and x.ctypes.data == b.pointer
    del b, y
    gc.collect()
    assert blocks(alice) == 1 and x[99, 29] == 2999
    del x
    gc.collect()
    assert blocks(alice) == 0


CONSUMER = """
import gc, sys, numpy, tenure
arena = tenure.arena("x", "64MiB")
with arena:
    keep = numpy.from_dlpack(tenure.Buffer(1000, device="sim"))
keep[:] = 7
"""


@pytest.mark.parametrize(
    "holder",
    [
        "sys.keep = keep",
        "def holds(): return keep",
        "class Cycle: pass\nc = Cycle(); c.c = c; c.keep = keep; del keep",
        "import atexit; atexit.register(lambda: print(keep.sum()))",
        "import threading; t = threading.Thread(target=lambda k=keep: None); t.start(); t.join()",
    ],
)
def test_a_consumer_outlives_the_module(native, run_python, holder):
    pytest.importorskip("numpy")
    said = run_python("-c", CONSUMER + holder, TENURE_LIBRARY=native.path)
    assert (said.returncode, said.stderr) == (0, "")


def test_a_consumer_that_refuses_keeps_its_own_error(native, run_python):
    """It sets its error and lets the capsule go; what ends the capsule must neither lose the error nor stumble over it."""
    pytest.importorskip("numpy")
    said = run_python("-c", (
        "import gc, numpy, tenure\n"
        "arena = tenure.arena('x')\n"
        "with arena: b = tenure.Buffer(3, 'bfloat16', device='sim')\n"
        "try: numpy.from_dlpack(b)\n"
        "except (RuntimeError, BufferError) as e: print(type(e).__name__, e)\n"
        "del b; gc.collect(); print(arena.stats('sim')['blocks'])\n"
    ), TENURE_LIBRARY=native.path)  # fmt: skip
    error, blocks_left = said.stdout.splitlines()
    assert "nsupported" in error and "SystemError" not in error
    assert (blocks_left, said.returncode, said.stderr) == ("0", 0, "")


def test_a_deleter_needs_no_python_and_keeps_the_last_error(alice):
    """It is called with Python's lock released, while another failure waits to be asked for."""
    with alice:
        b = tenure.Buffer(100, device="sim")
    taken = take(b.__dlpack__(), False)
    library, address = b._device.library, ctypes.addressof(taken)
    del b
    without_lock = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.cast(taken.deleter, ctypes.c_void_p).value)
    assert library.arena_set(None, b"", None) != 0
    text = library.last_error()
    without_lock(address)
    assert blocks(alice) == 0 and library.last_error() == text


def test_what_is_left_after_its_arena_is_destroyed(native):
    arena = tenure.arena("gone")
    with arena:
        b = tenure.Buffer(100, device="sim")
    taken = take(b.__dlpack__(max_version=(1, 0)), True)
    arena.destroy(release=True)
    with arena, pytest.raises(TenureError, match="was destroyed"):
        tenure.Buffer(1, device="sim")
    del b
    taken.deleter(ctypes.addressof(taken))


class Stream:
    """What CuPy's, PyTorch's and Numba's have."""

    def __init__(self, name, address):
        setattr(self, name, address)


def test_streams_of_libraries(alice):
    where = tenure._arenas.device("sim")
    address = where.create_stream()
    for stream in (address, Stream("ptr", address), Stream("cuda_stream", address), Stream("handle", ctypes.c_void_p(address))):
        with alice:
            b = tenure.Buffer(10, device="sim", stream=stream)
        assert b.stream == address
        b.record_use(stream)
        b.free()
        assert b.pointer == 0 and blocks(alice) == 0
    assert where.permanent(address) and where.permanent(0) and not where.permanent(2)


def test_uses_on_streams_that_are_gone(alice):
    """Only the device is waited for: a stream that is named by nobody may be gone."""
    where = tenure._arenas.device("sim")
    foreign = where.library.made("stream_create", where.handle)
    with alice:
        b = tenure.Buffer(10, device="sim")
    b.record_use(foreign)
    where.library.call("stream_destroy", where.handle, foreign)
    b.free()
    assert blocks(alice) == 0


def test_on_a_gpu_it_speaks_cuda(gpu, alice):
    with alice:
        b = tenure.Buffer((4, 4), "float32", device=gpu)
    assert b.__dlpack_device__() == (2, 0)
    interface = b.__cuda_array_interface__
    assert interface["data"] == (b.pointer, False) and interface["version"] == 3 and interface["stream"] == 1
    assert not hasattr(b, "__array_interface__")
    with pytest.raises(BufferError, match="two things"):
        b.__dlpack__(stream=0)
    for stream in (-1, 2, 1, None):
        capsule = b.__dlpack__(stream=stream)
        tensor = DLManagedTensor.from_address(get_pointer(capsule, b"dltensor")).dl_tensor
        assert (tensor.data, tensor.device_type, tensor.device_id) == (b.pointer, 2, 0)
        del capsule, tensor
