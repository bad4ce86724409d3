#!/usr/bin/env python3
"""Checks, or with --fix makes, the format of all C++ and CUDA files.

    check_format.py ROOT [--fix]

Releases of clang-format disagree, so exactly one counts. It is looked for in ROOT/.venv and on the PATH; where it is
missing the check says so and exits with 77 (skipped).
"""

import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "14.0.6"
FOLDERS = ["include", "src", "tests", "benchmarks", "examples"]
ENDINGS = {".hpp", ".cpp", ".cuh", ".cu"}


def find_clang_format(root):
    for candidate in [str(root / ".venv/bin/clang-format"), "clang-format-14", "clang-format"]:
        path = shutil.which(candidate)
        if not path:
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if VERSION in answer.stdout:
            return path
    return None


def main(arguments):
    fix = "--fix" in arguments
    folders = [a for a in arguments if a != "--fix"]
    if len(folders) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(folders[0]).resolve()
    program = find_clang_format(root)
    if not program:
        print(f"format: skipped, clang-format {VERSION} was not found (./dev test installs it into .venv)")
        return 77
    files = sorted(p for folder in FOLDERS for p in (root / folder).rglob("*") if p.suffix in ENDINGS)
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    # One call for many files keeps within the operating system's limit on arguments.
    failed = [batch for batch in (files[i : i + 50] for i in range(0, len(files), 50))
              if subprocess.run([program, *mode, *batch], check=False).returncode != 0]
    if failed:
        print("format: run ./dev format")
        return 1
    print(f"format: {len(files)} files {'formatted' if fix else 'are as clang-format ' + VERSION + ' writes them'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
