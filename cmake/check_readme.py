#!/usr/bin/env python3
"""Checks, or with --fix makes, that the README shows examples/quickstart.cpp as it is.

    check_readme.py ROOT [--fix]
"""

import re
import sys
from pathlib import Path

BLOCK = re.compile(r"```cpp\n.*?```\n", re.DOTALL)


def main(arguments):
    fix = "--fix" in arguments
    folders = [a for a in arguments if a != "--fix"]
    if len(folders) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    root = Path(folders[0])
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    code = (root / "examples/quickstart.cpp").read_text(encoding="utf-8")
    wanted = BLOCK.sub(lambda _: f"```cpp\n{code}```\n", text, count=1)
    if wanted == text:
        return 0
    if fix:
        readme.write_text(wanted, encoding="utf-8")
        return 0
    print("README.md does not show examples/quickstart.cpp as it is: run cmake/check_readme.py . --fix")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
