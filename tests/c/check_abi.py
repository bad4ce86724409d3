#!/usr/bin/env python3
"""Compares what libtenure.so offers with what is checked in, so that no release breaks a program by accident.

    check_abi.py LIBRARY LAYOUT_PROGRAM [ABI_TEXT]     exits 1 with the difference
    check_abi.py --write LIBRARY LAYOUT_PROGRAM        after a change that is meant: writes abi.txt anew

A line that goes away or changes breaks programs. A line that comes is a new version of the interface.
"""

import difflib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def symbols(library):
    """Exported names with their versions, sorted: "symbol tenure_free@@TENURE_0.1"."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True, capture_output=True, text=True
    ).stdout
    names = sorted(line.split()[-1] for line in listed.splitlines() if line.split()[-2] != "A")
    return [f"symbol {name}" for name in names]


def main(arguments):
    write = arguments[:1] == ["--write"]
    library, layout = arguments[write : write + 2]
    text = Path(arguments[write + 2]) if len(arguments) > write + 2 else HERE / "abi.txt"
    printed = subprocess.run([layout], check=True, capture_output=True, text=True).stdout.splitlines()
    soname = [
        line.split("[")[1].rstrip("]")
        for line in subprocess.run(
            ["readelf", "-d", library], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        if "SONAME" in line
    ]
    now = [f"soname {name}" for name in soname] + symbols(library) + printed
    if write:
        text.write_text("\n".join(now) + "\n")
        return 0
    before = text.read_text().splitlines()
    if now == before:
        print(f"{len(now)} lines of interface, as in {text.name}")
        return 0
    print("\n".join(difflib.unified_diff(before, now, str(text), "the library", lineterm="")))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
