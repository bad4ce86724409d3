"""tenure: GPU memory, allocation policies and arenas with hard byte limits.

* :mod:`tenure.torch` puts PyTorch on tenure: ``import tenure.torch; tenure.torch.install()``.
* :mod:`tenure.trace` turns a PyTorch memory snapshot into a trace that ``tenure compare`` replays.
* ``python -m tenure --help`` lists the commands.

Importing this package imports neither torch nor any library: it needs nothing but Python.
"""

from __future__ import annotations

from ._sizes import format_bytes, parse_bytes
from ._version import __version__

__all__ = ["__version__", "format_bytes", "parse_bytes"]
