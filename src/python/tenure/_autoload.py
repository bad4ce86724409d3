"""``TENURE_TORCH=1``: torch comes up on tenure, with no change to the program.

The wheel installs ``tenure_autoload.pth``, which Python reads when it starts; if the variable is set, it calls ``arm``.
From then on the first ``import torch`` ends with ``tenure.torch.install``. Nothing else is imported before, and nothing
here touches CUDA, so programs that fork first and use CUDA in their children work as they did.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import threading
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Dict, Mapping, Optional, Sequence

PREFIX = "TENURE_TORCH_"
NOT_OPTIONS = frozenset({"LIBRARY", "DIR"})
"""Variables with the prefix that are read elsewhere: where the library is, and where torch is when it is built."""


def options_of(environment: Mapping[str, str]) -> Dict[str, Any]:
    """Arguments for ``install`` from the environment: ``TENURE_TORCH_MARK_BYTES=4MiB`` is ``mark_bytes="4MiB"``."""
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX) and name[len(PREFIX) :] not in NOT_OPTIONS and value
    }


def arm() -> None:
    """Install tenure as soon as torch has been imported; at once if it has been."""
    mode = os.environ.get("TENURE_TORCH", "")
    if mode not in ("1", "auto"):
        warnings.warn(f"TENURE_TORCH is {mode!r}: it may be 1, auto or 0; tenure is not used", RuntimeWarning)
    elif "torch" in sys.modules:
        _install()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _install() -> None:
    from . import torch as tenure_torch

    try:
        tenure_torch._install_unasked(options_of(os.environ))
    except Exception as error:
        if os.environ.get("TENURE_TORCH") != "auto":
            raise ImportError(
                f"TENURE_TORCH=1 asks for tenure, and it cannot be had: {error}\n"
                "(TENURE_TORCH=auto goes on with torch's own allocator then, with a warning)"
            ) from error
        warnings.warn(f"TENURE_TORCH=auto: torch keeps its own allocator: {error}", RuntimeWarning)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch where the others find it, and puts a loader around theirs."""

    def __init__(self) -> None:
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if fullname != "torch" or getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    if spec.loader is not None:
                        spec.loader = _Loader(spec.loader, self)
                    return spec
        finally:
            self._looking.now = False
        return None


class _Loader(importlib.abc.Loader):
    """Does what the loader inside does, then installs tenure, and leaves no trace of itself."""

    def __init__(self, inner: Any, finder: _Finder) -> None:
        self._inner = inner
        self._finder = finder

    def __getattr__(self, name: str) -> Any:  # whoever only looks at the spec sees the loader inside
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self._inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        _install()  # if that fails, so does the import, and the next one must fail as well
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
