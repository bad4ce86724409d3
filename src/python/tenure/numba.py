"""Numba on tenure: an External Memory Management plugin.

    from numba import cuda
    import tenure.numba
    tenure.numba.install()                        # before Numba first uses CUDA
    # or, with no change to the program: NUMBA_CUDA_MEMORY_MANAGER=tenure.numba

    with tenure.arena("alice", max="4GiB"):
        x = cuda.device_array(1 << 20)            # alice's

Numba does not say on which stream a block is used. So blocks can be used on every stream at once, and are freed in the
order of the legacy default stream, behind which Numba's own streams all stand; streams made with cudaStreamNonBlocking by
somebody else do not: synchronize them before the array goes.

Sharing with other processes needs memory of cudaMalloc: an arena with policy="caching" or "best_fit".
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Callable

from numba import cuda
from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer
from numba.cuda.cudadrv import driver

from . import _native
from ._library import TenureError
from ._arenas import current, device

__all__ = ["TenureMemoryManager", "install"]


_numbers = itertools.count()


def _address(address: int) -> Any:
    """As Numba's driver module takes one: the CUdeviceptr of NVIDIA's bindings, which MemoryPointer makes of a c_void_p, or
    where it calls the driver through ctypes (numba without numba-cuda) the integer that the calls are declared with."""
    bindings = getattr(driver, "USE_NV_BINDING", True)
    return ctypes.c_void_p(address) if bindings else ctypes.c_size_t(address)


def _finalizer(allocations: Any, key: Any) -> Callable[[], None]:
    def free() -> None:
        allocations.pop(key, None)  # a reset of the context has emptied it

    return free


class TenureMemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Device memory from the arena that the calling code is in; host memory as Numba does it."""

    def initialize(self) -> None:
        """Nothing to do: a device is opened when it is first used."""

    @property
    def interface_version(self) -> int:
        return 1

    def _ordinal(self) -> int:
        return int(self.context.device.id)

    def memalloc(self, size: int) -> Any:
        """``size`` bytes.

        Raises:
            OutOfMemory: a limit, or the device, has no place for it; after Numba's own pending frees were made.
        """
        wanted = max(int(size), 1)
        try:
            block = current().allocate_sync(wanted, self._ordinal())
        except _native.OutOfMemory:
            # Numba's own manager would have waited in each cuMemFree; here a free waits in the order of its stream.
            self.deallocations.clear()
            device(self._ordinal()).synchronize(0)
            block = current().allocate_sync(wanted, self._ordinal())
        # Not the address: after a reset of the context another block may lie there when the finalizer of this one comes.
        key = ("tenure", next(_numbers))
        self.allocations[key] = block
        return MemoryPointer(self.context, _address(block.pointer), size, finalizer=_finalizer(self.allocations, key))

    def get_memory_info(self) -> Any:
        """What the arena that this code is in may still have, as far as the device has it."""
        current().handle(device(self._ordinal()))
        memory = device(self._ordinal()).memory()
        stats = current().stats(self._ordinal())
        idle = stats["reserved"] - stats["allocated"]
        total = memory["total"] if stats["max"] is None else min(memory["total"], stats["max"])
        free = min(memory["free"] + idle, total - min(total, stats["charged"] - idle))
        return MemoryInfo(free=free, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        try:
            return super().get_ipc_handle(memory)
        except Exception as error:
            raise TenureError(
                "this memory cannot be shared with other processes: take it from an arena with policy='caching' or "
                f"'best_fit' ({error})"
            ) from error


def install() -> None:
    """Make tenure Numba's memory manager. Numba reads this when it first uses CUDA."""
    _native.load()
    cuda.set_memory_manager(TenureMemoryManager)


_numba_memory_manager = TenureMemoryManager
