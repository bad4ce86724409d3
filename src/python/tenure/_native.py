"""The C interface of libtenure.so (``include/tenure/tenure.h``), with its codes as exceptions.

Calls release Python's lock (``ctypes.CDLL``), so none of the library's locks is ever waited for while Python's is held.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ._library import SharedLibrary, TenureError, find_library

NO_LIMIT = 2**64 - 1
VARIABLE = "TENURE_LIBRARY"
NAME = "libtenure.so.0"

_int, _u64, _size, _text, _pointer = ctypes.c_int32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
_pointer_out, _u64_out = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint64)


class Failure(ctypes.Structure):
    """``tenure_failure``."""

    _fields_ = [("size", _size)] + [
        (name, _u64)
        for name in ("requested", "rounded", "used", "min", "max", "free_bytes", "largest_free", "pending")
    ] + [("cause", ctypes.c_char * 24), ("arena", ctypes.c_char * 96)]  # fmt: skip


class DeviceInfo(ctypes.Structure):
    """``tenure_device_info``."""

    _fields_ = [("size", _size), ("total", _u64), ("free", _u64), ("host", _int), ("ordinal", _int)]


class Statistics(ctypes.Structure):
    """``tenure_statistics``."""

    _fields_ = [("size", _size)] + [
        (name, _u64)
        for name in (
            "requested", "requested_peak", "allocated", "allocated_peak", "reserved", "reserved_peak", "pending", "captured",
            "blocks", "segments", "allocations", "failures", "charged", "charged_peak", "used", "min", "high", "max",
            "weight", "refused", "reclaimed", "borrowed", "scrubbed",
        )
    ]  # fmt: skip


# Texts that the caller gives back are declared as addresses: ctypes would copy a c_char_p and lose the address.
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "version": (ctypes.c_uint32, []),
    "version_text": (_text, []),
    "policies": (_text, []),
    "code_name": (_text, [_int]),
    "last_error": (_text, []),
    "get_failure": (_int, [ctypes.POINTER(Failure)]),
    "free_text": (None, [_pointer]),
    "device_open": (_int, [_text, _text, _pointer_out]),
    "device_close": (_int, [_pointer]),
    "device_get_info": (_int, [_pointer, ctypes.POINTER(DeviceInfo)]),
    "stream_create": (_int, [_pointer, _pointer_out]),
    "stream_synchronize": (_int, [_pointer, _pointer]),
    "stream_destroy": (_int, [_pointer, _pointer]),
    "arena_create": (_int, [_pointer, _text, _text, _pointer_out]),
    "group_create": (_int, [_pointer, _text, _text, _pointer_out]),
    "arenas_create": (_int, [_pointer, _text]),
    "arena_find": (_int, [_pointer, _text, _pointer_out]),
    "arena_destroy": (_int, [_pointer, ctypes.c_uint32]),
    "arena_set": (_int, [_pointer, _text, _u64_out]),
    "allocate": (_int, [_pointer, _pointer, _size, _size, _pointer_out]),
    "free": (_int, [_pointer, _pointer, _pointer, _size]),
    "allocate_sync": (_int, [_pointer, _size, _size, _pointer_out]),
    "free_sync": (_int, [_pointer, _pointer, _size]),
    "release": (_int, [_pointer, _pointer]),
    "record_use": (_int, [_pointer, _pointer, _pointer]),
    "owns": (ctypes.c_int, [_pointer, _pointer]),
    "share": (_int, [_pointer, _pointer, _pointer, _size, _pointer_out]),
    "shared_anywhere": (None, [_pointer]),
    "shared_drop": (_int, [_pointer]),
    "dlpack_export": (_int, [_pointer, _int, _int, _int, ctypes.POINTER(ctypes.c_int64), _int, _pointer_out, _pointer_out]),
    "dlpack_destructor": (_pointer, [_pointer, _pointer]),
    "trim": (_int, [_pointer, _u64, _u64_out]),
    "release_captured": (_int, [_pointer, _u64]),
    "get_statistics": (_int, [_pointer, ctypes.POINTER(Statistics)]),
    "arenas_json": (_int, [_pointer, _pointer_out]),
    "snapshot_json": (_int, [_pointer, _pointer_out]),
    "validate": (_int, [_pointer]),
}

OUT_OF_MEMORY, OVER_LIMIT, CAPTURE = 1, 2, 3
INVALID_HANDLE = 8
MISUSE = 32
"""Codes from here on are misuse."""


class OutOfMemory(TenureError, MemoryError):
    """There is no place for a block. The message says whose limit it was and what memory there is.

    Attributes:
        cause: ``"arena_limit"``, ``"ancestor_limit"``, ``"device"``, ``"fragmentation"`` or ``"stream_pending"``.
        arena: the path of the arena or group whose limit refused; empty if none did.
        requested, used, max: bytes.
    """

    def __init__(self, text: str, failure: Optional[Failure] = None) -> None:
        super().__init__(text)
        self.cause = failure.cause.decode() if failure else ""
        self.arena = failure.arena.decode("utf-8", "replace") if failure else ""
        self.requested = int(failure.requested) if failure else 0
        self.used = int(failure.used) if failure else 0
        self.max = int(failure.max) if failure else NO_LIMIT


class Misuse(TenureError):
    """A block that was freed twice, in the wrong arena, or with the wrong size. It was not freed."""


class Library(SharedLibrary):
    """The loaded library. ``call`` turns a code that is no success into :class:`OutOfMemory`, :class:`Misuse` or
    :class:`TenureError`."""

    functions = _FUNCTIONS

    def fail(self, code: int) -> None:
        text = self.error()
        if code in (OUT_OF_MEMORY, OVER_LIMIT):
            failure = Failure(size=ctypes.sizeof(Failure))
            raise OutOfMemory(text, failure if self.get_failure(ctypes.byref(failure)) == 0 else None)
        if code >= MISUSE:
            raise Misuse(text)
        raise TenureError(text)

    def made(self, name: str, *arguments: Any) -> int:
        """Call a function whose last argument receives an address, and return that."""
        address = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(address))
        return address.value or 0

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function whose last argument receives a text, and return that."""
        return self.taken(self.made(name, *arguments))


def find() -> Optional[Path]:
    """Where the library is; see :func:`find_library`."""
    return find_library(NAME, VARIABLE)


_loaded: Optional[Library] = None
_lock = threading.Lock()


def load() -> Library:
    """The library, loaded once.

    Raises:
        ImportError: there is none.
    """
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                path = find()
                if path is None:
                    raise ImportError(
                        f"{NAME} is not in this installation of tenure: install it from a wheel or a checkout with a C++20 "
                        f"compiler, or name the library in {VARIABLE}"
                    )
                _loaded = Library(path)
    return _loaded
