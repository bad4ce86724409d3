"""``Buffer``: memory of an arena as an array that other libraries take without a copy.

    with tenure.arena("alice", max="4GiB"):
        b = tenure.Buffer((1024, 1024), "float32", stream=stream)
    x = cupy.from_dlpack(b)                 # or torch.from_dlpack, jax.dlpack.from_dlpack, numba's as_cuda_array

It speaks DLPack (1.0 and the form before), and the CUDA array interface 3. On the device ``"sim"``, whose memory is the
host's, it says kDLCPU and speaks NumPy's array interface, so ``numpy.from_dlpack`` takes it.

Order: whoever takes it through DLPack says on which stream, and finds the work of the buffer's own stream done; after the
last reference is gone, the memory waits for that stream before somebody else has it. Whoever takes it through the CUDA
array interface orders himself behind the buffer's stream, and uses on other streams are for :meth:`Buffer.record_use`.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from ._arenas import Arena, Block, Device, current, device

_CPU, _CUDA = 1, 2
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6

_TYPES: Dict[str, Tuple[int, int, Optional[str]]] = {
    "bool": (_BOOL, 1, "|b1"), "int8": (_INT, 1, "|i1"), "int16": (_INT, 2, "<i2"), "int32": (_INT, 4, "<i4"),
    "int64": (_INT, 8, "<i8"), "uint8": (_UINT, 1, "|u1"), "uint16": (_UINT, 2, "<u2"), "uint32": (_UINT, 4, "<u4"),
    "uint64": (_UINT, 8, "<u8"), "float16": (_FLOAT, 2, "<f2"), "float32": (_FLOAT, 4, "<f4"),
    "float64": (_FLOAT, 8, "<f8"), "bfloat16": (_BFLOAT, 2, None), "complex64": (_COMPLEX, 8, "<c8"),
    "complex128": (_COMPLEX, 16, "<c16"),
}  # fmt: skip
"""DLPack's code, bytes, and the array interfaces' name (None: they have none)."""


class _Tensor(ctypes.Structure):
    """DLPack's ``DLTensor``."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """``DLManagedTensor``, the form before DLPack 1.0."""

    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _Deleter)]


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# What consumers hold: the structs, their arrays and the block, by number. No lock: each change is one operation of the dict,
# and a deleter may come in the middle of anything, also in the same thread.
_lent: Dict[int, Any] = {}
_numbers = itertools.count(1)


def _forget(form: Any, address: Optional[int]) -> None:
    if address:
        _lent.pop(form.from_address(address).manager, None)


_delete_managed = _Deleter(lambda address: _forget(_Managed, address))
_delete_versioned = _Deleter(lambda address: _forget(_Versioned, address))

_CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's own: not ctypes.pythonapi's attribute, whose types everybody may set."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor)
# Capsules as addresses: in a destructor they have no references left, and must not get one.
_capsule_is = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_capsule_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)


def _destroy_capsule(capsule: int) -> None:
    """A capsule that nobody has taken: whoever takes one gives it another name."""
    for name, form in ((b"dltensor", _Managed), (b"dltensor_versioned", _Versioned)):
        if _capsule_is(capsule, name):
            _forget(form, _capsule_pointer(capsule, name))


_destructor = _CapsuleDestructor(_destroy_capsule)


class Buffer:
    """An array in C order, not filled with anything, in the memory of an arena.

    Args:
        shape: a number of elements, or one for each dimension.
        dtype: ``"uint8"`` (bytes, the default), ``"float32"``, ``"bfloat16"``, ... or what has such a ``name``, as NumPy's.
        stream: the address of the stream that uses it first; 0 is the legacy default stream.
        device: ``"cuda:0"``, or ``"sim"``.
        arena: whose memory it is; left out, the arena that this code is in.

    Raises:
        OutOfMemory: a limit, or the device, has no place for it.
    """

    def __init__(
        self,
        shape: Union[int, Sequence[int]],
        dtype: Any = "uint8",
        *,
        stream: int = 0,
        device: Union[str, int] = "cuda:0",
        arena: Optional[Arena] = None,
    ) -> None:
        self.shape: Tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype = str(getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or dtype)
        if self.dtype not in _TYPES:
            raise TypeError(f"{self.dtype!r} is none of {', '.join(_TYPES)}")
        if any(n < 0 for n in self.shape):
            raise ValueError(f"no dimension can be negative: {self.shape}")
        self._code, self.itemsize, self._typestr = _TYPES[self.dtype]
        self.size = 1
        for n in self.shape:
            self.size *= n
        self.nbytes = self.size * self.itemsize
        if self.nbytes >= 1 << 63:
            raise ValueError(f"{self.nbytes} bytes are more than any device has")
        where = _device(device)
        self._block: Block = (arena or current()).allocate(self.nbytes, stream, where)
        self._device = where

    def __repr__(self) -> str:
        return f"<tenure.Buffer {self.shape} {self.dtype} on {self._device.name} in {self.arena.path!r}>"

    @property
    def pointer(self) -> int:
        """The address of its memory; 0 if it has none, or was freed."""
        return self._block.pointer

    @property
    def stream(self) -> int:
        """The stream in whose order its memory is freed."""
        return self._block.stream

    @property
    def device(self) -> str:
        """The name of its device."""
        return self._device.name

    @property
    def arena(self) -> Arena:
        """Whose memory it is."""
        return self._block.arena

    def record_use(self, stream: int) -> None:
        """It is also used on ``stream``; see :meth:`tenure._arenas.Block.record_use`."""
        self._block.record_use(stream)

    # --- DLPack ---

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (_CPU, 0) if self._device.host else (_CUDA, self._device.ordinal)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"this buffer is on {self.device}, and is not copied to other devices")
        if copy:
            raise BufferError("a tenure.Buffer does not copy itself")
        if self._block.pointer == 0 and self.nbytes != 0:
            raise BufferError("this buffer was freed")
        self._order(stream)
        dimensions = ctypes.c_int64 * max(1, len(self.shape))
        shape = dimensions(*self.shape)
        strides = dimensions()
        step = 1
        for i in reversed(range(len(self.shape))):
            strides[i] = step
            step *= self.shape[i]
        kind, ordinal = self.__dlpack_device__()
        tensor = _Tensor(
            self._block.pointer or None, kind, ordinal, len(self.shape), self._code, 8 * self.itemsize, 1, shape, strides, 0
        )
        number = next(_numbers)
        managed: Any
        if max_version is not None and max_version[0] >= 1:
            managed = _Versioned(1, 0, number, _delete_versioned, 0, tensor)
            name = b"dltensor_versioned"
        else:
            managed = _Managed(tensor, number, _delete_managed)
            name = b"dltensor"
        _lent[number] = (managed, shape, strides, self._block)
        return _capsule_new(ctypes.addressof(managed), name, _destructor)

    def _order(self, stream: Any) -> None:
        """The consumer's stream stands behind ours, and our free behind the consumer's stream, which must live until then."""
        if self._device.host:
            if stream is not None:
                raise BufferError("host memory has no stream: stream must be None")
            return
        if stream == -1:  # the consumer says that he needs no order
            return
        if stream == 0:
            raise BufferError("stream 0 means two things: write 1 for the legacy default stream, 2 for the thread's own")
        consumer = 0 if stream in (None, 1) else int(stream)
        if consumer != self._block.stream and self.nbytes != 0:
            self._device.synchronize(self._block.stream)
            self._block.record_use(consumer)

    # --- the array interfaces ---

    def __getattr__(self, name: str) -> Any:
        # As attributes that are there or not: libraries ask for them to find out where an array lies.
        if name in ("__cuda_array_interface__", "__array_interface__"):
            block = self.__dict__.get("_block")
            where = self.__dict__.get("_device")
            if block is not None and where is not None and where.host == (name == "__array_interface__"):
                if self._typestr is not None:
                    return self._interface(block, where)
        raise AttributeError(f"a tenure.Buffer has no {name} here")

    def _interface(self, block: Block, where: Device) -> Dict[str, Any]:
        if block.pointer == 0 and self.nbytes != 0:
            raise BufferError("this buffer was freed")
        interface: Dict[str, Any] = {
            "shape": self.shape,
            "typestr": self._typestr,
            "data": (block.pointer, False),
            "strides": None,
            "version": 3,
        }
        if not where.host:
            interface["stream"] = block.stream or 1
        return interface

    def free(self) -> None:
        """Free its memory now, in the order of its stream. What took it without a copy must be gone."""
        self._block.free()


_device = device  # a parameter of Buffer has the name
