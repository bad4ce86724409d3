"""CuPy on tenure.

    import cupy, tenure.cupy
    tenure.cupy.install()

    with tenure.arena("alice", max="4GiB"):
        x = cupy.ones((1024, 1024))        # alice's; at her limit: cupy.cuda.memory.OutOfMemoryError, with reasons

Blocks are ordered by CuPy's current stream, as CuPy's own pool orders them. For one block of code only:
``with cupy.cuda.using_allocator(tenure.cupy.malloc): ...``.
"""

from __future__ import annotations

from typing import Any

from . import _native
from ._arenas import Block, current

__all__ = ["install", "malloc", "record_use", "uninstall"]


def _error_type() -> Any:
    """What both tenure's users and CuPy's catch."""
    global _error
    if _error is None:
        import cupy

        def explained(self: Any, text: str, failure: Any) -> None:
            _native.OutOfMemory.__init__(self, text, failure)

        theirs = cupy.cuda.memory.OutOfMemoryError
        _error = type("OutOfMemoryError", (_native.OutOfMemory, theirs), {"__init__": explained, "__module__": __name__})
    return _error


_error: Any = None


def malloc(size: int) -> Any:
    """CuPy's allocator interface: ``size`` bytes of the arena that this code is in, on the current device and stream.

    Returns:
        cupy.cuda.MemoryPointer: the memory is freed when the last array in it is gone.
    """
    import cupy

    ordinal = cupy.cuda.device.get_device_id()
    stream = cupy.cuda.get_current_stream()
    try:
        block = current().allocate(int(size), int(stream.ptr), ordinal)
    except _native.OutOfMemory as error:
        kind = _error_type()
        raised = kind(str(error), None)
        raised.__dict__.update(error.__dict__)
        raise raised from None
    block.hold(stream)  # a stream that is gone cannot be freed on
    memory = cupy.cuda.UnownedMemory(block.pointer, int(size), block, ordinal)
    return cupy.cuda.MemoryPointer(memory, 0)


def install() -> None:
    """Make tenure CuPy's allocator. Arrays that exist stay where they are."""
    import cupy

    _native.load()
    cupy.cuda.set_allocator(malloc)


def uninstall() -> None:
    """Back to CuPy's own pool. Arrays in tenure's memory live on there."""
    import cupy

    cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)


def record_use(array: Any, stream: Any = None) -> None:
    """``array`` is also used on ``stream`` (left out: the current one): when it is gone, its memory waits for the work that
    is there then. CuPy's own pool has no such thing, and needs a synchronize instead."""
    import cupy

    owner = getattr(array.data.mem, "_owner", None)
    if not isinstance(owner, Block):
        raise TypeError("this array is not in memory of tenure's")
    use = stream if stream is not None else cupy.cuda.get_current_stream()
    owner.hold(use)
    owner.record_use(int(use.ptr))
