"""Sizes in bytes, by the rules of the C++ library: ``"20GiB"``, ``"512MiB"``, or a whole number of bytes.

Binary units only. "GB" means two different things to two readers, so it is an error, and the message says what to
write instead.
"""

from __future__ import annotations

import re
from typing import Union

ByteSize = Union[int, str]
"""A size as users write it."""

_LARGEST = 2**64 - 1
_UNITS = {
    "": 0, "B": 0, "KiB": 10, "K": 10, "MiB": 20, "M": 20, "GiB": 30, "G": 30,
    "TiB": 40, "T": 40, "PiB": 50, "P": 50, "EiB": 60, "E": 60,
}  # fmt: skip
_NUMBER = re.compile(r"[0-9]+")


def parse_bytes(size: ByteSize) -> int:
    """Read a size: digits, then optionally one of ``B KiB MiB GiB TiB PiB EiB`` (``K M G T P E`` for short).

    Spaces may stand between number and unit. No sign, no fraction.

    Raises:
        ValueError: the text is no size; the message quotes it and says what is accepted.
        TypeError: neither text nor a whole number.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a size is a whole number of bytes or a text such as '512MiB', not {size!r}")
    if isinstance(size, int):
        if not 0 <= size <= _LARGEST:
            raise ValueError(f"invalid size {size}: it must be between 0 and 2^64 - 1 bytes")
        return size

    def refuse(why: str) -> ValueError:
        return ValueError(
            f'invalid size "{size}": {why} (write whole bytes, or a whole number with KiB, MiB, GiB, TiB: 512MiB)'
        )

    digits = _NUMBER.match(size)
    if not digits:
        raise refuse("no number")
    number = int(digits.group())
    if number > _LARGEST:
        raise refuse("the number does not fit in 64 bits")
    unit = size[digits.end() :]
    # A space at the end stays, as no unit.
    while len(unit) > 1 and unit[0] == " ":
        unit = unit[1:]
    if unit not in _UNITS:
        raise refuse("unknown unit")
    number <<= _UNITS[unit]
    if number > _LARGEST:
        raise refuse("more than 64 bits")
    return number


def format_bytes(n: int) -> str:
    """``n`` in the largest binary unit that keeps it at least 1, with two decimals where they say something."""
    unit = 0
    while unit < 6 and n >> (10 * (unit + 1)):
        unit += 1
    whole, rest = divmod(n, 1 << (10 * unit))
    name = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[unit]
    return f"{whole}.{rest * 100 >> (10 * unit):02d} {name}" if rest else f"{whole} {name}"
