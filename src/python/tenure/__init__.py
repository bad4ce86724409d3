"""tenure: GPU memory, allocation policies and arenas with hard byte limits.

* :mod:`tenure.torch` puts PyTorch on tenure: ``import tenure.torch; tenure.torch.install()``.
* :func:`tenure.arena` and :class:`tenure.Buffer` are memory with hard limits for all other libraries; :mod:`tenure.cupy` and
  :mod:`tenure.numba` put CuPy and Numba on it.
* :mod:`tenure.trace` turns a PyTorch memory snapshot into a trace that ``tenure compare`` replays.
* ``python -m tenure --help`` lists the commands.

Importing this package imports neither torch nor any library: it needs nothing but Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ._sizes import format_bytes, parse_bytes
from ._version import __version__

if TYPE_CHECKING:
    from ._native import Misuse, OutOfMemory
    from ._arenas import Arena, Group, arena, arenas, group, policies
    from .dlpack import Buffer

_LATER = {
    "Arena": "_arenas", "Buffer": "dlpack", "Group": "_arenas", "Misuse": "_native", "OutOfMemory": "_native",
    "arena": "_arenas", "arenas": "_arenas", "group": "_arenas", "policies": "_arenas",
}  # fmt: skip
"""Where a name lives that is imported when it is first used."""

__all__ = ["__version__", "format_bytes", "parse_bytes", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'tenure' has no attribute {name!r}")
    from importlib import import_module

    globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    return globals()[name]


def __dir__() -> List[str]:
    return sorted({*globals(), *_LATER})
