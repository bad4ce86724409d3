"""PyTorch on tenure.

    import tenure.torch
    tenure.torch.install()                      # before or after torch's first use of CUDA

Everything that works on torch's own allocator goes on working. What is new:

    with tenure.torch.arena("alice", max="4GiB"):
        ...                                     # this thread's tensors, and those of the autograd threads working for it

    for usage in tenure.torch.arenas():
        print(usage.name, usage.charged, usage.max)

and, with torch's own allocator left in charge:

    pool = tenure.torch.mem_pool(max="2GiB")
    with torch.cuda.use_mem_pool(pool):
        ...

``TENURE_TORCH=1`` in the environment does ``install()`` with no change to the program. Importing this module imports
neither torch nor the library; whatever is missing is said by the first function that needs it.

All functions are thread-safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import threading
import weakref
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import _library
from ._library import OptionValue, TenureError
from ._sizes import ByteSize

if TYPE_CHECKING:
    from types import TracebackType

    import torch as _torch_types

__all__ = [
    "Arena", "TenureError", "Usage", "arena", "arenas", "current_arena", "install", "installed", "mem_pool", "policies",
    "set_limit", "stats",
]  # fmt: skip

_HOW_TO_BUILD = "in a checkout of tenure, with this torch installed: pip install --force-reinstall --no-deps ."
_lock = threading.Lock()
_loaded: Optional[_library.Library] = None


# --- what everything needs ------------------------------------------------------------------------------------------


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("tenure.torch needs PyTorch, and there is no module torch: pip install torch") from error
    return torch


def _version_built_for(path: Path) -> Optional[str]:
    """What the build wrote beside the library: readable also where the library itself cannot be loaded."""
    try:
        return (path.parent / "torch_version.txt").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _minor(version: str) -> List[str]:
    return version.split("+")[0].split(".")[:2]


def _load() -> _library.Library:
    """The library, loaded, after torch and only into the version of torch that it was built for."""
    global _loaded
    with _lock:
        if _loaded is not None:
            return _loaded
    torch = _torch()
    version = str(torch.__version__)
    with _lock:
        if _loaded is not None:
            return _loaded
        path = _library.find()
        if path is None:
            raise ImportError(
                "tenure was installed without libtenure_torch.so, because there was no torch to build it against; "
                f"{_HOW_TO_BUILD} (or name a library that you have built in {_library.VARIABLE})"
            )
        if torch.version.cuda is None:
            raise ImportError(f"torch {version} is built without CUDA; tenure.torch needs one with: see pytorch.org")
        built_for = _version_built_for(path)
        if built_for is not None and _minor(built_for) != _minor(version):
            raise ImportError(
                f"libtenure_torch.so is built for torch {'.'.join(_minor(built_for))} and this is torch {version}; "
                f"build it for this one: {_HOW_TO_BUILD}; or install torch {'.'.join(_minor(built_for))}"
            )
        try:
            library = _library.Library(path)
        except OSError as error:
            raise ImportError(
                f"torch {version} cannot load {path}: {error}; build it for this torch: {_HOW_TO_BUILD}"
            ) from error
        if library.check(version.encode()) != 0:
            raise ImportError(library.error())
        _loaded = library
        return library


def _need_device(torch: Any) -> None:
    """Looks for a device without starting CUDA, so that processes forked later may still use it."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        found = torch.cuda.is_available()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    if not found:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f" (CUDA_VISIBLE_DEVICES is {visible!r})" if visible is not None else ""
        raise TenureError(
            f"there is no CUDA device{hint}, so there is nothing to manage; "
            "`nvidia-smi` and torch.cuda.is_available() say what the machine and torch see"
        )


# --- in charge of all of torch's CUDA memory ------------------------------------------------------------------------


def install(policy: str = "remap", limit: Optional[ByteSize] = None, **options: OptionValue) -> None:
    """Make tenure torch's CUDA allocator, for the rest of the process.

    Best called before torch first uses CUDA; later works too, and then the tensors that exist stay with the former
    allocator until they die. Called again with the same arguments, it does nothing.

    Args:
        policy: how memory is handed out; see :func:`policies`.
        limit: bytes that each device may give to torch together, for example ``"20GiB"``; beyond it
            ``torch.cuda.OutOfMemoryError``. ``None``: all there is.
        **options: of the policy, as ``tenure compare --help`` lists them, for example ``slack_divisor=100`` or
            ``mark_bytes="4MiB"``; ``share``, whether memory can be given to other processes: where the device can,
            unless it is said otherwise; and ``waits``, whether memory goes from stream to stream as torch's waits
            allow it: yes, unless something else than torch records torch's events.

    Raises:
        ImportError: torch, the library, or the right version of either is missing; the message says what to do.
        TenureError: there is no device, an option is unknown or its value bad, or tenure is installed with other options.
        ValueError: ``limit`` is no size.
    """
    torch = _torch()
    library = _load()
    _need_device(torch)
    _install(library, policy, limit, options)


def _install_unasked(options: Dict[str, Any]) -> None:
    """For ``TENURE_TORCH=1``: as ``install``, but a process without a device is left in peace."""
    _install(_load(), options.pop("policy", "remap"), options.pop("limit", None), options)


def _install(
    library: _library.Library, policy: str, limit: Optional[ByteSize], options: Dict[str, OptionValue]
) -> None:
    chosen: Dict[str, OptionValue] = {"policy": policy}
    if limit is not None:
        chosen["limit"] = _library.limit_bytes(limit)
    chosen.update(options)
    library.call("install", str(_torch().__version__).encode(), _library.option_lines(chosen))


def installed() -> bool:
    """Whether tenure is torch's allocator in this process."""
    return _loaded is not None and bool(_loaded.installed())


def policies() -> List[str]:
    """The names that ``install(policy=...)`` and ``arena(policy=...)`` take."""
    return _load().policy_names


def set_limit(limit: Optional[ByteSize], device: Optional[int] = None) -> None:
    """The bytes that a device may give to all arenas together, from now on; ``device=None``: each device."""
    _load().call("set_limit", _device(device), _library.limit_bytes(limit))


def stats(device: Optional[int] = None) -> Dict[str, Any]:
    """tenure's own figures for one device, torch's current one if none is named; ``torch.cuda.memory_stats`` has torch's.

    ``limit`` and ``fraction`` bound what may be ``charged``, whose ``peak`` is told; ``device_allocations`` and
    ``device_frees`` count the calls to the driver; ``foreign_frees`` what the ``former_allocator`` had handed out.
    """
    library = _load()
    if device is None:
        torch = _torch()
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    result: Dict[str, Any] = json.loads(library.text("stats", device))
    return result


def _device(device: Optional[int]) -> int:
    if device is None:
        return -1
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"a device is named by its number, not by {device!r}")
    if device < 0:
        raise ValueError(f"device {device}: numbers begin with 0")
    return device


# --- tenants --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """What one arena holds on one device, in bytes."""

    id: int
    name: str
    kind: str = "arena"
    """``arena``, or ``pool``: made by :func:`mem_pool`."""
    policy: str = ""
    device: Optional[int] = None
    """None: not used on any device yet."""
    max: Optional[int] = None
    """None: no limit."""
    charged: int = 0
    """What counts against ``max``: everything held from the device, free space included."""
    peak: int = 0
    """The most that was ever charged."""
    refused: int = 0
    """How often the limit said no."""
    requested: int = 0
    requested_peak: int = 0
    allocated: int = 0
    allocated_peak: int = 0
    reserved: int = 0
    reserved_peak: int = 0
    pending: int = 0
    """Freed, but still used by work on a stream."""
    captured: int = 0
    """Belongs to captured graphs."""
    blocks: int = 0
    failures: int = 0
    """Requests that failed, for whatever reason."""
    alive: bool = True
    """False: destroyed, with tensors left."""


_usage_fields = frozenset(f.name for f in fields(Usage))


class Arena(contextlib.ContextDecorator):
    """One tenant's memory: its own on every device, at most ``max`` bytes on each.

    Made by :func:`arena`. Used with ``with`` (or as a decorator), any number of times, nested, and by several threads at
    once: while inside, a thread allocates from this arena, and so do the autograd threads that work for it. Memory goes
    back to the arena that it came from, wherever it is freed.

    Being inside is a property of the thread: do not ``await`` or ``yield`` inside, others would run in this arena.
    """

    def __init__(self, library: _library.Library, number: int, name: str) -> None:
        self._library = library
        self.id = number
        self.name = name

    def __repr__(self) -> str:
        return f"<tenure arena {self.name!r}>"

    def __enter__(self) -> "Arena":
        self._library.call("arena_push", self.id)
        return self

    def __exit__(
        self,
        kind: Optional[type],
        error: Optional[BaseException],
        trace: Optional["TracebackType"],
    ) -> None:
        self._library.call("arena_pop")

    def set_max(self, max: Optional[ByteSize], device: Optional[int] = None) -> None:
        """The limit from now on. Nothing is taken from tensors; while the arena holds more, it gets nothing more."""
        self._library.call("arena_set_max", self.id, _device(device), _library.limit_bytes(max))

    def trim(self, keep: ByteSize = 0, device: Optional[int] = None) -> int:
        """Give free memory back to the device, down to ``keep`` bytes held. Returns: how many bytes it was."""
        given_back = ctypes.c_uint64(0)
        self._library.call("arena_trim", self.id, _device(device), _library.limit_bytes(keep), ctypes.byref(given_back))
        return given_back.value

    def usage(self) -> List[Usage]:
        """What it holds, one entry a device that it has been used on."""
        return [usage for usage in arenas() if usage.id == self.id]

    def destroy(self) -> None:
        """Nobody can enter it any more, and its name is free. Its tensors live on, its memory goes as they go."""
        self._library.call("arena_destroy", self.id)
        with _lock:
            if _arenas.get(self.name) is self:
                del _arenas[self.name]


class _PoolArena(Arena):
    """The arena of a ``MemPool``: torch allocates from it as long as the pool lives."""

    def __enter__(self) -> "Arena":
        raise TenureError(f"pool {self.name!r} is used with torch.cuda.use_mem_pool(pool)")

    def destroy(self) -> None:
        raise TenureError(f"pool {self.name!r} goes when its torch.cuda.MemPool and what was allocated in it are gone")


_arenas: Dict[str, Arena] = {}


def arena(name: str, max: Optional[ByteSize] = None, **options: OptionValue) -> Arena:
    """The arena with this name, made at its first mention.

    Args:
        name: not empty. ``"torch"`` is the one that every thread uses that is in no other.
        max: the most that it may hold on each device. For an arena that exists: its limit from now on, and ``None``
            leaves it as it is.
        **options: for a new arena ``policy`` and the policy's options, as for :func:`install`; its default is the policy
            installed. An arena that exists keeps its own: naming any is an error.

    At its limit an allocation raises ``torch.cuda.OutOfMemoryError``, and the other arenas go on.

    Raises: as :func:`install`; and TenureError if tenure is not installed.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of an arena is a text, not {name!r}")
    library = _load()
    if not library.installed():
        raise TenureError("call tenure.torch.install() first (or use tenure.torch.mem_pool, which works without)")
    limit = _library.limit_bytes(max)
    number = ctypes.c_uint64(0)
    with _lock:
        if library.arena_find(name.encode(), ctypes.byref(number)) == 0:
            if options:
                raise TenureError(f'arena "{name}" exists; options are for new ones: {", ".join(sorted(options))}')
            if max is not None:
                library.call("arena_set_max", number.value, -1, limit)
        else:
            library.call("arena_create", name.encode(), limit, _library.option_lines(options), ctypes.byref(number))
        found = _arenas.get(name)
        if found is None or found.id != number.value:
            found = _arenas[name] = Arena(library, number.value, name)
        return found


def current_arena() -> str:
    """The name of the arena that this thread allocates from."""
    number = _load().arena_current()
    return next((usage.name for usage in arenas() if usage.id == number), "torch")


def arenas() -> List[Usage]:
    """All arenas, one entry for each and each device that it has been used on."""
    library = _load()
    _reap(library)
    listed = json.loads(library.text("arenas"))
    return [Usage(**{key: value for key, value in entry.items() if key in _usage_fields}) for entry in listed]


# --- with torch's own allocator in charge ---------------------------------------------------------------------------

_pool_numbers = iter(range(1, sys.maxsize))
_orphans: List[int] = []


def mem_pool(
    name: Optional[str] = None,
    max: Optional[ByteSize] = None,
    *,
    use_on_oom: bool = False,
    no_split: bool = False,
    **options: OptionValue,
) -> "_torch_types.cuda.MemPool":
    """A ``torch.cuda.MemPool`` whose segments come from a tenure arena of its own, for ``torch.cuda.use_mem_pool``.

    Works with and without :func:`install`; without, torch's own allocator stays in charge of everything, this pool's
    splitting and caching included, and the arena sees whole segments of 2 MiB and more.

    Args:
        name: as :func:`arenas` shows it; one is made up if there is none.
        max: the most that the pool may hold on each device; at it ``torch.cuda.OutOfMemoryError``.
        use_on_oom, no_split: as ``torch.cuda.MemPool`` has them.
        **options: ``policy`` and the policy's options. The default, ``caching``, takes each segment as it is from
            ``cudaMalloc``, so that other devices and other processes reach it as torch's allocator expects.

    Returns: the pool; its attribute ``arena`` is the :class:`Arena` (for ``set_max``, ``usage``, ``trim``).
    """
    torch = _torch()
    library = _load()
    _need_device(torch)
    _reap(library)
    name = f"pool {next(_pool_numbers)}" if name is None else name
    number, allocate, free = ctypes.c_uint64(0), ctypes.c_void_p(), ctypes.c_void_p()
    library.call(
        "pool_create", name.encode(), _library.limit_bytes(max), _library.option_lines(options),
        ctypes.byref(number), ctypes.byref(allocate), ctypes.byref(free),
    )  # fmt: skip
    try:
        source = torch._C._cuda_customAllocator(allocate.value, free.value)
        pool = torch.cuda.MemPool(source, use_on_oom=use_on_oom, no_split=no_split)
    except BaseException:
        library.arena_destroy(number.value)
        raise
    pool.arena = _PoolArena(library, number.value, name)
    # The pool gives its segments back only after this runs, and tensors may hold some even longer.
    weakref.finalize(pool, _orphans.append, number.value).atexit = False
    return pool


def _reap(library: _library.Library) -> None:
    """Destroy the arenas of pools that are gone, as far as nothing lives in them."""
    for _ in range(len(_orphans)):
        try:
            number = _orphans.pop()
        except IndexError:
            return
        if library.arena_destroy(number) != 0:
            _orphans.insert(0, number)
