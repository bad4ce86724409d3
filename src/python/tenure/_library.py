"""The C interface of libtenure_torch.so (``src/torch/tenure_torch.h``), with its failures as exceptions.

Nothing here imports torch. Calls release Python's lock (``ctypes.CDLL``), so none of the library's locks is ever waited
for while Python's is held.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from ._sizes import ByteSize, parse_bytes

NO_LIMIT = 2**64 - 1
ABI = 1
VARIABLE = "TENURE_TORCH_LIBRARY"

OptionValue = Union[bool, int, float, str]

_int, _u64, _text, _pointer = ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_void_p
_id_out = ctypes.POINTER(ctypes.c_uint64)
_pointer_out = ctypes.POINTER(ctypes.c_void_p)

# Texts that the caller gives back are declared as addresses: ctypes would copy a c_char_p and lose the address.
_FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "tenure_torch_abi": (_int, []),
    "tenure_torch_last_error": (_text, []),
    "tenure_torch_built_for": (_text, []),
    "tenure_torch_policies": (_text, []),
    "tenure_torch_free_text": (None, [_pointer]),
    "tenure_torch_check": (_int, [_text]),
    "tenure_torch_install": (_int, [_text, _text]),
    "tenure_torch_installed": (_int, []),
    "tenure_torch_set_limit": (_int, [_int, _u64]),
    "tenure_torch_arena_create": (_int, [_text, _u64, _text, _id_out]),
    "tenure_torch_arena_find": (_int, [_text, _id_out]),
    "tenure_torch_arena_destroy": (_int, [_u64]),
    "tenure_torch_arena_push": (_int, [_u64]),
    "tenure_torch_arena_pop": (_int, []),
    "tenure_torch_arena_current": (_u64, []),
    "tenure_torch_arena_set_max": (_int, [_u64, _int, _u64]),
    "tenure_torch_arena_trim": (_int, [_u64, _int, _u64, _id_out]),
    "tenure_torch_arenas": (_pointer, []),
    "tenure_torch_pool_create": (_int, [_text, _u64, _text, _id_out, _pointer_out, _pointer_out]),
    "tenure_torch_stats": (_pointer, [_int]),
    "tenure_torch_validate": (_int, []),
}


class TenureError(RuntimeError):
    """tenure could not do what was asked; the message says why."""


class Library:
    """The loaded library. ``call`` and ``text`` turn its results into values or :class:`TenureError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._functions = ctypes.CDLL(str(path))
        abi = self._functions.tenure_torch_abi()
        if abi != ABI:
            raise ImportError(
                f"{path} has interface {abi} and this Python package needs {ABI}: they are of different versions of "
                "tenure; install both from the same one"
            )
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, "tenure_torch_" + name)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns 0 for success."""
        if getattr(self, name)(*arguments) != 0:
            raise TenureError(self.error())

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that returns text."""
        address = getattr(self, name)(*arguments)
        if not address:
            raise TenureError(self.error())
        try:
            return ctypes.string_at(address).decode("utf-8", "replace")
        finally:
            self.free_text(address)

    def error(self) -> str:
        """Why this thread's last call failed."""
        return str(self.last_error().decode("utf-8", "replace"))

    @property
    def built_for_torch(self) -> str:
        """The version of torch that it was built against."""
        return str(self.built_for().decode())

    @property
    def policy_names(self) -> List[str]:
        """The policies that it offers."""
        return list(map(str, self.policies().decode().split()))


def find_library(name: str, variable: str) -> Optional[Path]:
    """Where the library ``name`` is: what ``variable`` names (a file, or the folder it lies in), else in the package.

    Raises:
        ImportError: the variable names a place where it is not.
    """
    named = os.environ.get(variable)
    if named:
        path = Path(named)
        if path.is_dir():
            path = path / name
        if not path.is_file():
            raise ImportError(f"{variable} says {named}, but there is no {path}")
        return path.resolve()
    path = Path(__file__).parent / "lib" / name
    return path if path.is_file() else None


def find() -> Optional[Path]:
    """Where the library for PyTorch is; see :func:`find_library`."""
    return find_library("libtenure_torch.so", VARIABLE)


def option_text(key: str, value: OptionValue, forbidden: str, as_words: str) -> str:
    """An option as ``key=value``; switches as ``on`` and ``off``. Characters of ``forbidden``, ``as_words`` for people, are
    refused."""
    if isinstance(value, bool):
        value = "on" if value else "off"
    elif not isinstance(value, (int, float, str)):
        raise TypeError(f"option {key} is a number, a text or True/False, not {value!r}")
    text = f"{key}={value}"
    if any(c in text for c in forbidden):
        raise ValueError(f"option {key} has {as_words} in it: {value!r}")
    return text


def option_lines(options: Mapping[str, OptionValue]) -> bytes:
    """Options as the library reads them, a line each."""
    return "\n".join(option_text(key, value, "\n", "a line break") for key, value in options.items()).encode()


def limit_bytes(size: Optional[ByteSize]) -> int:
    """A limit as the library takes it; None stands for no limit."""
    return NO_LIMIT if size is None else parse_bytes(size)
