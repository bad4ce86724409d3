"""Arenas for Python: tenants with hard limits in bytes, and which of them this code is in.

    with tenure.arena("alice", max="4GiB"):
        ...                                    # CuPy, Numba and tenure.Buffer allocate from alice's arena here

An arena is a name, limits and a policy; it has memory of its own on each device that it is used on. Which arena code is in
is a context variable: each thread and each asyncio task has its own, and begins in the default arena. Memory is freed to
the arena it came from, whatever is entered.

Devices are named ``"cuda:0"``, ``"cuda:1"``, ...; ``"sim"`` is host memory with the manners of a GPU, for trying things.

PyTorch has arenas of its own (:mod:`tenure.torch`), because its allocator is another library.
"""

from __future__ import annotations

import contextvars
import ctypes
import json
import os
import threading
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Type, Union

from . import _native
from ._library import OptionValue, TenureError, option_text
from ._sizes import ByteSize, parse_bytes

DEFAULT = "default"
"""The name of the arena that code is in which entered none."""


class Device:
    """A device that the library has opened. Made by :func:`device`, once for each name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.library = _native.load()
        self.handle = self.library.made("device_open", name.encode(), None)
        info = self._info()
        self.host: bool = bool(info.host)
        """Whether its memory is the host's."""
        self.ordinal = int(info.ordinal)
        """The number of the GPU, as this process counts them."""
        self._streams: Set[int] = set()

    def _info(self) -> _native.DeviceInfo:
        info = _native.DeviceInfo(size=ctypes.sizeof(_native.DeviceInfo))
        self.library.call("device_get_info", self.handle, ctypes.byref(info))
        return info

    def memory(self) -> Dict[str, int]:
        """Bytes that nobody holds, and all there are: ``{"free", "total"}``."""
        info = self._info()
        return {"free": int(info.free), "total": int(info.total)}

    def create_stream(self) -> int:
        """A stream that does not wait for the default stream, as an address. It lives as long as the process."""
        stream = self.library.made("stream_create", self.handle)
        self._streams.add(stream)
        return stream

    def permanent(self, stream: int) -> bool:
        """Whether a stream lives as long as the process: the legacy default stream, and what ``create_stream`` made."""
        return stream in (0, 1) or stream in self._streams

    def synchronize(self, stream: int) -> None:
        """Wait for all work of a stream."""
        self.library.call("stream_synchronize", self.handle, stream)


_lock = threading.RLock()
_devices: Dict[str, Device] = {}


def device(name: Union[str, int]) -> Device:
    """The device with this name, ``"cuda:0"`` or ``"sim"``; a number N stands for ``"cuda:N"``."""
    if isinstance(name, int):
        name = f"cuda:{name}"
    elif name == "cuda":
        name = "cuda:0"
    elif name.startswith("cuda:") and name[5:].isdecimal():
        name = f"cuda:{int(name[5:])}"  # "cuda:00" is no other device
    with _lock:
        if name not in _devices:
            _devices[name] = Device(name)
        return _devices[name]


def _forget_devices() -> None:
    """In a child of fork, which has no handles of its parent's."""
    _devices.clear()
    for tenant in _tenants.values():
        tenant._handles.clear()


os.register_at_fork(after_in_child=_forget_devices)


_PER_THREAD = 2  # cudaStreamPerThread

# What blocks hold on to: an owner of a stream, and the number of blocks that name it. Here and not in the block, because the
# collector ends all that is in one cycle of garbage in any order, and the stream must go after the block.
_held: Dict[int, List[Any]] = {}
_held_lock = threading.RLock()  # a finaliser may come in between, in the same thread


def _hold(owner: Any) -> None:
    with _held_lock:
        _held.setdefault(id(owner), [owner, 0])[1] += 1


def _drop(number: int) -> None:
    with _held_lock:
        entry = _held[number]
        entry[1] -= 1
        if entry[1] == 0:
            del _held[number]
    del entry  # the owner may end here, with no lock held


class Block:
    """Memory of an arena: ``pointer``, ``size`` in bytes, ``stream``. Freed when it is collected, or by :meth:`free`."""

    __slots__ = ("__weakref__", "_handle", "_held", "_library", "_once", "arena", "device", "pointer", "size", "stream")

    def __init__(self, arena: "Arena", on: Device, handle: int, pointer: int, size: int, stream: int) -> None:
        self.arena = arena
        self.device = on
        self.pointer = pointer
        self.size = size
        self.stream = stream
        self._held: Set[int] = set()
        self._once = [pointer]  # taken out by whoever frees it
        self._handle = handle
        self._library = on.library

    def hold(self, owner: Any) -> None:
        """``owner`` lives as long: what owns a stream that this block names, which must be there at the free."""
        if id(owner) not in self._held:
            _hold(owner)
            self._held.add(id(owner))

    def _let_go(self) -> None:
        while self._held:
            _drop(self._held.pop())

    def _free(self, pointer: int) -> int:
        # The per-thread default stream is another one in each thread, and the collector runs in any: there the block is
        # freed on the stream that it was allocated on, which the pool knows.
        if self.stream == _PER_THREAD:
            return int(self._library.release(self._handle, pointer))
        return int(self._library.free(self._handle, self.stream, pointer, self.size))

    def free(self) -> None:
        """Free it in the order of its stream: what runs there already may go on using it.

        Raises:
            Misuse: it is not live.
        """
        try:
            pointer = self._once.pop()
        except IndexError:
            return
        self.pointer = 0
        code = self._free(pointer)
        self._let_go()
        if code != 0:
            self._library.fail(code)

    def record_use(self, stream: int) -> None:
        """It is also used on ``stream``: after its free it waits for the work that is there then. The stream must live
        until then."""
        self._library.call("record_use", self._handle, self.pointer, stream)

    def __del__(self) -> None:
        try:
            pointer = self._once.pop()
        except (AttributeError, IndexError):
            return
        if self._is_there():
            self._free(pointer)
        self._let_go()

    def _is_there(self) -> bool:
        """False: its arena was destroyed, and it with it. A finaliser may run between a call that failed and the question
        why, and must not fail in between."""
        return self.arena._handles.get(self.device.name) == self._handle


class SharedBlock(Block):
    """A block that others may hold, too; freed when the last lets go of it."""

    __slots__ = ("_lock", "shared")

    def __init__(self, block: Block) -> None:
        self._lock = threading.RLock()  # of free() against what uses `shared`
        self.shared = block._library.made("share", block._handle, block.stream, block.pointer, block.size)
        block._once.clear()  # it is ours
        super().__init__(block.arena, block.device, block._handle, block.pointer, block.size, block.stream)

    def _free(self, pointer: int) -> int:
        with self._lock:
            shared, self.shared = self.shared, 0
            return int(self._library.shared_drop(shared))

    def _is_there(self) -> bool:
        return True  # the library knows

    def anywhere(self) -> None:
        """It may be in use on streams that nobody names: its free waits for the device."""
        with self._lock:
            self._library.shared_anywhere(self.shared)

    def export(self, kind: int, bits: int, shape: Sequence[int], version: int) -> Tuple[int, int]:
        """An array in it for DLPack, which holds it: the addresses of DLPack's struct and of its capsule's name."""
        managed, name = ctypes.c_void_p(), ctypes.c_void_p()
        numbers = (ctypes.c_int64 * len(shape))(*shape)
        with self._lock:
            if self.shared == 0:
                raise BufferError("this buffer was freed")
            self._library.call(
                "dlpack_export", self.shared, kind, bits, len(shape), numbers, version, ctypes.byref(managed), ctypes.byref(name)
            )
        return managed.value or 0, name.value or 0


def _policy_text(policy: str, options: Mapping[str, OptionValue]) -> str:
    if any(c in policy for c in ", \t\n;:\0"):
        raise ValueError(f"{policy!r} is no policy's name")
    words = [option_text(key, value, ", \t\n;", "one of , ; or a space") for key, value in options.items()]
    return policy + (":" + ",".join(words) if words else "")


class _Tenant:
    """What arenas and groups have in common: a path, settings, and a place on each device that they were used on."""

    kind = "arena"

    def __init__(self, path: str, settings: Mapping[str, Optional[str]]) -> None:
        self.path = path
        self._settings = {key: value for key, value in settings.items() if value is not None}
        self._handles: Dict[str, int] = {}
        self._lock = threading.RLock()  # a finaliser that allocates may come in between, in the same thread
        self._alive = True

    def __repr__(self) -> str:
        return f"<tenure {self.kind} {self.path!r}>"

    def handle(self, on: Device) -> int:
        """Its place on a device, made if it has none yet."""
        handle = self._handles.get(on.name)
        return handle if handle is not None else self._make(on)

    def _make(self, on: Device) -> int:
        above = self.path.rpartition("/")[0]
        if above:
            with _lock:
                parent = _tenants.get(above)
            if parent is not None:
                parent.handle(on)
        with self._lock:
            if not self._alive:
                raise TenureError(f"{self!r} was destroyed")
            if on.name not in self._handles:
                settings = " ".join(f"{key}={value}" for key, value in self._settings.items())
                self._handles[on.name] = on.library.made(
                    f"{self.kind}_create", on.handle, self.path.encode(), settings.encode()
                )
            return self._handles[on.name]

    def set(self, **limits: Optional[ByteSize]) -> None:
        """Change ``max``, ``high``, ``min`` (None: none) or ``weight``, on all devices, from now on. A ``max`` below what is
        held takes effect for new requests."""
        unknown = set(limits) - {"max", "high", "min", "weight"}
        if unknown:
            raise TypeError(f"unknown: {', '.join(sorted(unknown))} (known: max, high, min, weight)")
        words = {key: _size_text(value) for key, value in limits.items()}
        with self._lock:
            for name, handle in self._handles.items():
                settings = " ".join(f"{key}={value}" for key, value in words.items())
                _devices[name].library.call("arena_set", handle, settings.encode(), None)
            self._settings.update(words)

    def trim(self, keep: ByteSize = 0) -> int:
        """Give free memory back until at most ``keep`` bytes are held on each device. Returns: the bytes given back."""
        given = 0
        for name, handle in list(self._handles.items()):
            one = ctypes.c_uint64()
            _devices[name].library.call("trim", handle, parse_bytes(keep), ctypes.byref(one))
            given += one.value
        return given

    def stats(self, on: Union[str, int, None] = None) -> Dict[str, Any]:
        """Counters of one device, or the sum over all: bytes, and numbers where the name says so. ``max`` and ``high`` are
        None where there is none."""
        total: Dict[str, Any] = {}
        names = list(self._handles) if on is None else [device(on).name]
        for name in names:
            handle = self._handles.get(name)
            if handle is None:
                continue
            s = _native.Statistics(size=ctypes.sizeof(_native.Statistics))
            _devices[name].library.call("get_statistics", handle, ctypes.byref(s))
            for key, _ in s._fields_[1:]:
                value = getattr(s, key)
                total[key] = value if key in ("max", "high", "weight") else total.get(key, 0) + value
        if not total:
            total = {key: 0 for key, _ in _native.Statistics._fields_[1:]}
            total.update({"max": _native.NO_LIMIT, "high": _native.NO_LIMIT})
        for key in ("max", "high"):
            if total[key] == _native.NO_LIMIT:
                total[key] = None
        return total

    def destroy(self, release: bool = False) -> None:
        """Give all its memory back; its name is free. ``release``: blocks that are live are freed, too; without, they are an
        error. All work on them must be over. It waits for calls of other threads that are using it; later ones fail."""
        with self._lock:
            for name, handle in list(self._handles.items()):
                _devices[name].library.call("arena_destroy", handle, 1 if release else 0)
                del self._handles[name]
            self._alive = False
        with _lock:
            if _tenants.get(self.path) is self:
                del _tenants[self.path]


class Group(_Tenant):
    """A level above arenas, with limits that hold for all below it together. Made by :func:`group`."""

    kind = "group"


class Arena(_Tenant):
    """A tenant with memory of its own. Made by :func:`arena`; ``with`` enters it."""

    def allocate(self, size: int, stream: int = 0, on: Union[str, int, Device] = "cuda:0") -> Block:
        """A block for use on ``stream`` first.

        Raises:
            OutOfMemory: a limit, or the device, has no place for it.
        """
        where = on if isinstance(on, Device) else device(on)
        handle = self.handle(where)
        pointer = where.library.made("allocate", handle, stream, _checked(size), 0)
        return Block(self, where, handle, pointer, size, stream)

    def allocate_sync(self, size: int, on: Union[str, int, Device] = "cuda:0") -> Block:
        """A block that every stream may use at once. It is freed in the order of the legacy default stream."""
        where = on if isinstance(on, Device) else device(on)
        handle = self.handle(where)
        pointer = where.library.made("allocate_sync", handle, _checked(size), 0)
        return Block(self, where, handle, pointer, size, 0)

    def snapshot(self, on: Union[str, int] = "cuda:0") -> Dict[str, Any]:
        """Its segments and blocks on a device: see ``tenure_snapshot_json``."""
        where = device(on)
        snapshot: Dict[str, Any] = json.loads(where.library.text("snapshot_json", self.handle(where)))
        return snapshot

    def __enter__(self) -> "Arena":
        _current.set((self, _current.get()))
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        _current.set(_without(_current.get(), self))


_tenants: Dict[str, _Tenant] = {}
# What was entered last, and what before it.
_current: contextvars.ContextVar[Optional[Tuple[Arena, Any]]] = contextvars.ContextVar("tenure_arena", default=None)


def _without(entered: Optional[Tuple[Arena, Any]], arena: Arena) -> Optional[Tuple[Arena, Any]]:
    """What was entered, without the last entry of ``arena``: a suspended generator may have entered others since."""
    if entered is None:
        return None
    if entered[0] is arena:
        left: Optional[Tuple[Arena, Any]] = entered[1]
        return left
    return (entered[0], _without(entered[1], arena))


def _checked(size: int) -> int:
    """``size``, if it is a number of bytes: ctypes would cut it to 64 bits."""
    if not 0 <= size < 1 << 63:
        raise ValueError(f"{size} is no number of bytes that can be allocated")
    return size


def _size_text(size: Optional[ByteSize]) -> str:
    return "none" if size is None else str(parse_bytes(size))


def _settings(
    max: Optional[ByteSize],
    high: Optional[ByteSize],
    min: Optional[ByteSize],
    weight: Optional[int],
) -> Dict[str, Optional[str]]:
    return {
        "max": None if max is None else _size_text(max),
        "high": None if high is None else _size_text(high),
        "min": None if min is None else _size_text(min),
        "weight": None if weight is None else str(weight),
    }


def _known(path: str, made: _Tenant) -> Any:
    """The tenant at a path: ``made``, or the one that is there already, if it was made alike."""
    if "\0" in path:
        raise ValueError(f"{path!r} is no path: it has a zero character in it")
    with _lock:
        there = _tenants.setdefault(path, made)
    if type(there) is not type(made):
        raise TenureError(f"{there!r} is there already")
    if there is not made and made._settings and made._settings != there._settings:
        raise TenureError(
            f"{there!r} is there already, with other settings: {there._settings or 'none'}; change them with set()"
        )
    return there


def arena(
    path: str,
    max: Optional[ByteSize] = None,
    *,
    high: Optional[ByteSize] = None,
    min: Optional[ByteSize] = None,
    weight: Optional[int] = None,
    policy: Optional[str] = None,
    **options: OptionValue,
) -> Arena:
    """The arena at ``path`` (names with ``/`` between them; what is above it is a :func:`group`), made if there is none.

    Called with a path alone it returns an arena that is there; with other settings than that has, it fails.

    Args:
        path: its name, or its path.
        max: bytes that it may hold on each device: a hard limit.
        high: bytes above which its caches are trimmed.
        min: bytes that are kept for it.
        weight: its share above ``min`` when idle memory is taken from several.
        policy: one of :func:`policies`; ``options`` are that policy's, as ``tenure compare --help`` names them.
    """
    if options and policy is None:
        raise TypeError(f"{', '.join(options)}: options belong to a policy, so name one")
    settings = _settings(max, high, min, weight)
    settings["policy"] = None if policy is None else _policy_text(policy, options)
    found: Arena = _known(path, Arena(path, settings))
    return found


def group(
    path: str,
    max: Optional[ByteSize] = None,
    *,
    high: Optional[ByteSize] = None,
    min: Optional[ByteSize] = None,
    weight: Optional[int] = None,
) -> Group:
    """The group at ``path``, made if there is none: limits for all that stands below it together."""
    found: Group = _known(path, Group(path, _settings(max, high, min, weight)))
    return found


def current() -> Arena:
    """The arena that this code is in."""
    entered = _current.get()
    return entered[0] if entered is not None else arena(DEFAULT)


def arenas(on: Union[str, int, None] = None) -> List[Dict[str, Any]]:
    """All arenas and groups of a device, or of all that were used: rows as docs/schema/arenas-1.json has them, with
    ``"device"``."""
    names = list(_devices) if on is None else [device(on).name]
    rows: List[Dict[str, Any]] = []
    for name in names:
        read = json.loads(_devices[name].library.text("arenas_json", _devices[name].handle))
        rows += [{"device": name, **row} for row in read["arenas"]]
    return rows


def policies() -> List[str]:
    """The names of the policies."""
    return list(map(str, _native.load().policies().decode().split()))
