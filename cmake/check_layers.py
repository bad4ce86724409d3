#!/usr/bin/env python3
"""Checks the headers against the rules of the house; prints one line a breach, exits 1 if there is one.

    check_layers.py include        checks include/tenure/**
    check_layers.py --self-test    plants one breach of each rule and sees that it is caught

Rules, for `tenure/LAYER/name.hpp` and for the umbrella `tenure/LAYER.hpp`:
  * it includes only headers of its own layer and of the layers in ALLOWED; the umbrella `tenure/tenure.hpp` may
    include everything and nothing includes it;
  * it never includes a tenure header with quotes;
  * a header in a layer's folder never includes its own layer's umbrella (that would be a circle);
  * snake_case file names, `#pragma once` and a `/// \\file` comment at the top, no unfinished work left in words.
"""

import re
import sys
import tempfile
from pathlib import Path

# Who may include whom, transitively closed: a layer's row names all layers below it.
ALLOWED = {
    "core": set(),
    "resource": {"core"},
    "layout": {"core"},
    "device": {"core"},
    "backing": {"core", "device"},
    "ordering": {"core", "device", "layout"},
    "policy": {"core", "resource", "layout", "device", "backing", "ordering"},
    "front": {"core", "resource", "layout", "device", "backing", "ordering", "policy"},
    "tenancy": {"core", "resource", "layout", "device", "backing", "ordering", "policy", "front"},
    "adapt": {"core", "resource"},
    "interop": {"core", "resource", "device"},
}
EVERYTHING = "tenure"
C_INTERFACE = "tenure/tenure.h"  # includes no header of tenure's, and has the guards of C

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
SNAKE_CASE = re.compile(r"^[a-z][a-z0-9_]*\.hpp$")


def layer_of(path):
    """The layer of "tenure/x/y.hpp" and of "tenure/x.hpp": x."""
    parts = Path(path).parts
    return parts[1] if len(parts) > 2 else Path(parts[1]).stem


def is_umbrella(path):
    return len(Path(path).parts) == 2


def check_header(name, text):
    """Yields (line number, message) for each breach in the header `name` ("tenure/layer/file.hpp")."""
    layer = layer_of(name)
    if layer != EVERYTHING and layer not in ALLOWED:
        yield 1, f"\"{layer}\" is no layer; the layers are {', '.join(ALLOWED)}"
        return
    if not SNAKE_CASE.match(Path(name).name):
        yield 1, "the file name is not snake_case"

    lines = text.splitlines()
    code = [line for line in lines if line.strip()]
    if not code or code[0].strip() != "#pragma once":
        yield 1, "does not begin with #pragma once"
    if len(code) < 2 or code[1].strip() != r"/// \file":
        yield 2, r"#pragma once is not followed by a `/// \file` comment"

    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            yield number, "unfinished work left in words"
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, target = match.groups()
        if quote == '"':
            yield number, f'include "{target}": write <tenure/...>'
            continue
        if not target.startswith("tenure/"):
            continue
        below = layer_of(target)
        if below == EVERYTHING:
            yield number, f"<{target}> is for users; include what is needed"
        elif layer == EVERYTHING:
            pass
        elif below == layer:
            if is_umbrella(target):
                yield number, f"<{target}> is the umbrella of this very layer"
        elif below not in ALLOWED.get(layer, set()):
            yield number, f"<{target}>: layer {layer} must not include layer {below}"


def check_tree(include):
    """Returns a list of "file:line: message"."""
    breaches = []
    headers = sorted(p for p in (include / "tenure").rglob("*") if p.is_file() and p != include / C_INTERFACE)
    if not headers:
        breaches.append(f"{include}: no headers found")
    for path in headers:
        name = path.relative_to(include).as_posix()
        for line, message in check_header(name, path.read_text(encoding="utf-8")):
            breaches.append(f"{path}:{line}: {message}")
    return breaches


def self_test():
    opening = "#pragma once\n\n/// \\file\n/// A header.\n\n"
    good = {
        "tenure/tenure.hpp": opening + "#include <tenure/core.hpp>\n#include <tenure/policy.hpp>\n",
        "tenure/core.hpp": opening + "#include <tenure/core/units.hpp>\n",
        "tenure/core/units.hpp": opening + "#include <vector>\n",
        "tenure/policy.hpp": opening + "#include <tenure/policy/pool.hpp>\n",
        "tenure/policy/pool.hpp": opening + "#include <tenure/core.hpp>\n#include <tenure/layout/map.hpp>\n",
        "tenure/layout/map.hpp": opening + "#include <tenure/core/units.hpp>\n",
    }
    planted = {  # header, its text, words of the message that must come
        "an upward include": ("tenure/layout/map.hpp", opening + "#include <tenure/policy/pool.hpp>\n", "must not include"),
        "an upward include in an umbrella": ("tenure/core.hpp", opening + "#include <tenure/policy.hpp>\n", "must not include"),
        "a sideways include": ("tenure/layout/map.hpp", opening + "# include <tenure/device/device.hpp>\n", "must not include"),
        "quotes": ("tenure/core/units.hpp", opening + '#include "bits.hpp"\n', "write <tenure"),
        "the user's umbrella": ("tenure/policy/pool.hpp", opening + "#include <tenure/tenure.hpp>\n", "for users"),
        "a circle": ("tenure/policy/pool.hpp", opening + "#include <tenure/policy.hpp>\n", "umbrella"),
        "no layer": ("tenure/misc/pool.hpp", opening, "no layer"),
        "a name in capitals": ("tenure/core/Units.hpp", opening, "snake_case"),
        "no guard": ("tenure/core/units.hpp", "#ifndef UNITS\n/// \\file\n", "#pragma once"),
        "no introduction": ("tenure/core/units.hpp", "#pragma once\n#include <vector>\n", "file"),
        "unfinished work": ("tenure/core/units.hpp", opening + "// TO" + "DO\n", "unfinished"),
    }
    failed = 0

    def run(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return check_tree(Path(folder))

    if breaches := run(good):
        failed += 1
        print("self-test: a good tree was refused:", *breaches, sep="\n  ")
    for what, (name, text, words) in planted.items():
        breaches = run({**good, name: text})
        if len(breaches) != 1 or words not in breaches[0]:
            failed += 1
            print(f"self-test: {what} in {name} was not caught as such:", *(breaches or ["nothing said"]), sep="\n  ")
    print(f"self-test: {len(planted) + 1 - failed} of {len(planted) + 1} as expected")
    return 1 if failed else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    breaches = check_tree(Path(arguments[0]))
    print(*breaches, sep="\n") if breaches else print("layers: every header keeps the rules")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
