"""``Buffer``: memory of an arena as an array that other libraries take without a copy.

    with tenure.arena("alice", max="4GiB"):
        b = tenure.Buffer((1024, 1024), "float32", stream=stream)
    x = cupy.from_dlpack(b)                 # or torch.from_dlpack, jax.dlpack.from_dlpack, numba's as_cuda_array

It speaks DLPack (1.0 and the form before), and the CUDA array interface 3. On the device ``"sim"``, whose memory is the
host's, it says kDLCPU and speaks NumPy's array interface, so ``numpy.from_dlpack`` takes it.

What consumers hold belongs to the library and not to Python: it may outlive this module, and be given up on any thread.

Order: whoever takes it through DLPack says on which stream, and finds the work of the buffer's own stream done. After the
last reference is gone, the memory waits for that work before somebody else has it: in the order of streams where all are
known to live on (the legacy default stream), else for the whole device, because a handle alone does not keep its stream
alive. Whoever takes it through the CUDA array interface orders himself behind the buffer's stream, and uses on other streams
are for :meth:`Buffer.record_use`.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from ._arenas import Arena, Block, Device, SharedBlock, current, device

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


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's own: not ctypes.pythonapi's attribute, whose types everybody may set."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def _address(name: str) -> Optional[int]:
    return ctypes.cast(ctypes.CFUNCTYPE(None)((name, ctypes.pythonapi)), ctypes.c_void_p).value


def _stream_address(stream: Any) -> int:
    for name in ("ptr", "cuda_stream", "handle"):
        stream = getattr(stream, name, stream)
    return int(getattr(stream, "value", stream) or 0)  # Numba's is a c_void_p


class Buffer:
    """An array in C order, not filled with anything, in the memory of an arena.

    Args:
        shape: a number of elements, or one for each dimension.
        dtype: ``"uint8"`` (bytes, the default), ``"float32"``, ``"bfloat16"``, ... or what has such a ``name``, as NumPy's.
        stream: the stream that uses it first: what has its address as ``ptr`` (CuPy), ``cuda_stream`` (PyTorch) or
            ``handle`` (Numba), which is kept alive; or the address, of a stream that lives as long as the buffer. 0 is the
            legacy default stream.
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
        stream: Any = 0,
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
        address = _stream_address(stream)
        self._block = SharedBlock((arena or current()).allocate(self.nbytes, address, where))
        if not isinstance(stream, int):
            self._block.hold(stream)
        self._device = where

    def __repr__(self) -> str:
        return f"<tenure.Buffer {self.shape} {self.dtype} on {self._device.name} in {self.arena.path!r}>"

    @property
    def pointer(self) -> int:
        """The address of its memory; 0 if it has none, or it was let go."""
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

    def record_use(self, stream: Any) -> None:
        """It is also used on ``stream``, given as to the constructor: after its free it waits for that. On other streams than
        the legacy default stream the free waits for the whole device."""
        address = _stream_address(stream)
        if self._device.permanent(address):
            self._block.record_use(address)
        else:
            self._block.anywhere()

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
        version = 1 if max_version is not None and max_version[0] >= 1 else 0
        managed, name = self._block.export(self._code, 8 * self.itemsize, self.shape, version)
        library = self._device.library
        destructor = library.dlpack_destructor(_address("PyCapsule_IsValid"), _address("PyCapsule_GetPointer"))
        return _capsule_new(managed, name, destructor)

    def _order(self, stream: Any) -> None:
        """The consumer's stream stands behind ours, and our free behind the consumer's."""
        if self._device.host:
            if stream is not None:
                raise BufferError("host memory has no stream: stream must be None")
            return
        if stream == 0:
            raise BufferError("stream 0 means two things: write 1 for the legacy default stream, 2 for the thread's own")
        own = self._block.stream
        consumer = 0 if stream in (None, 1) else int(stream)
        if not self._device.permanent(consumer) or not self._device.permanent(own):
            self._block.anywhere()  # also with -1: "no order needed" is said of now, not of the free
        elif consumer != own and self.nbytes != 0:
            self._block.record_use(consumer)
        if consumer not in (own, -1) and self.nbytes != 0:
            self._device.synchronize(own)

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
        """Let go of its memory: it is free once no consumer of DLPack holds it. What took it through an array interface must
        be gone."""
        self._block.free()


_device = device  # a parameter of Buffer has the name
