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
    "abi": (_int, []),
    "last_error": (_text, []),
    "built_for": (_text, []),
    "policies": (_text, []),
    "free_text": (None, [_pointer]),
    "check": (_int, [_text]),
    "install": (_int, [_text, _text]),
    "installed": (_int, []),
    "set_limit": (_int, [_int, _u64]),
    "arena_create": (_int, [_text, _u64, _text, _id_out]),
    "arena_find": (_int, [_text, _id_out]),
    "arena_destroy": (_int, [_u64]),
    "arena_push": (_int, [_u64]),
    "arena_pop": (_int, []),
    "arena_current": (_u64, []),
    "arena_set_max": (_int, [_u64, _int, _u64]),
    "arena_trim": (_int, [_u64, _int, _u64, _id_out]),
    "arenas": (_pointer, []),
    "pool_create": (_int, [_text, _u64, _text, _id_out, _pointer_out, _pointer_out]),
    "stats": (_pointer, [_int]),
    "validate": (_int, []),
}


class TenureError(RuntimeError):
    """tenure could not do what was asked; the message says why."""


class SharedLibrary:
    """A loaded library: its functions are attributes, under their names without ``prefix``."""

    prefix = "tenure_"
    functions: Dict[str, Tuple[Any, List[Any]]] = {}
    """What each function returns and takes. They need ``last_error`` and ``free_text``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        loaded = ctypes.CDLL(str(path))
        self.fits(loaded)
        for name, (result, arguments) in self.functions.items():
            try:
                function = getattr(loaded, self.prefix + name)
            except AttributeError as error:
                raise ImportError(f"{path} has no {self.prefix}{name}: it is older than this Python package") from error
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:  # for type checkers: all functions are set when it is made
        raise AttributeError(name)

    def fits(self, loaded: Any) -> None:
        """Raise ImportError if it does not fit this package."""

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns 0 for success, and :meth:`fail` if it does not."""
        code = getattr(self, name)(*arguments)
        if code != 0:
            self.fail(code)

    def fail(self, code: int) -> None:
        """Raise the exception that belongs to this thread's last failure."""
        raise TenureError(self.error())

    def error(self) -> str:
        """Why this thread's last call failed."""
        return str(self.last_error().decode("utf-8", "replace"))

    def taken(self, address: int) -> str:
        """The text that the library has made there, which is given back."""
        try:
            return ctypes.string_at(address).decode("utf-8", "replace")
        finally:
            self.free_text(address)


class Library(SharedLibrary):
    """The library for PyTorch. ``call`` and ``text`` turn its results into values or :class:`TenureError`."""

    prefix = "tenure_torch_"
    functions = _FUNCTIONS

    def fits(self, loaded: Any) -> None:
        abi = loaded.tenure_torch_abi()
        if abi != ABI:
            raise ImportError(
                f"{self.path} has interface {abi} and this Python package needs {ABI}: they are of different versions of "
                "tenure; install both from the same one"
            )

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function that returns text."""
        address = getattr(self, name)(*arguments)
        if not address:
            self.fail(0)
        return self.taken(address)

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
