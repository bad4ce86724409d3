#!/usr/bin/env python3
"""Counts instructions of warm allocate+deallocate pairs, and compares with the counts that are checked in.

    hot_path_counts.py <hot_path>            compares; exits 1 when a count has grown by more than a tenth, or limits cost any
    hot_path_counts.py <hot_path> --write    writes hot_path_counts.csv anew

Counted by valgrind's callgrind as the difference of two runs, so that the warm-up drops out; exits 77 with a reason where
there is no valgrind. Instructions with a lock prefix are counted in the code of the hits (objdump): the table says 0,
and any is a failure.
"""

import csv
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).with_name("hot_path_counts.csv")
FEW, MANY = 2000, 12000
TOLERANCE = 1.1
# Functions that are a hit from beginning to end; what they call on a miss is out of line.
HIT = re.compile(r"<tenure::magazines<[^>]*>.*::(try_)?(de)?allocate\(CUstream_st")
LOCKED = re.compile(r"\t(lock|xchg\s+%\w+,[^,]*\(|xchg\s+[^,]*\()")


def collected(program, case, pairs):
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", "--toggle-collect=*hot_pairs*",
             program, "--run", case, str(pairs)], capture_output=True, text=True, check=True)
    return int(re.search(r"Collected\s*:\s*(\d+)", run.stderr).group(1))


def instructions(program, case):
    return round((collected(program, case, MANY) - collected(program, case, FEW)) / (MANY - FEW))


def locked(program):
    """The number of instructions with a lock prefix in the functions of the hits; None where there is no objdump."""
    if shutil.which("objdump") is None:
        return None
    text = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", program], capture_output=True, text=True,
                          check=True).stdout
    functions = [f for f in text.split("\n\n") if HIT.search(f.split("\n", 1)[0]) and "[clone" not in f.split("\n", 1)[0]]
    if not functions:
        sys.exit("hot_path_counts: the functions of the hits were not found")
    return sum(bool(LOCKED.search(line)) for f in functions for line in f.split("\n")[1:])


def main():
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] != "--write"):
        sys.exit(__doc__)
    if shutil.which("valgrind") is None:
        print("hot_path_counts: skipped: valgrind is not installed")
        return 77
    program = sys.argv[1]
    cases = subprocess.run([program, "--cases"], capture_output=True, text=True, check=True).stdout.split()
    # Counts do not depend on the size; one small and one large show it.
    cases = [c for c in cases if c.endswith(("/512", "/1048576"))]
    counts = {case: instructions(program, case) for case in cases}
    locks = locked(program)

    if len(sys.argv) == 3:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["case", "instructions_per_pair"])
            writer.writerows(counts.items())
        print(f"hot_path_counts: {TABLE.name} written; locked instructions in hits: {locks}")
        return 0

    with TABLE.open(newline="", encoding="utf-8") as file:
        expected = {row["case"]: int(row["instructions_per_pair"]) for row in csv.DictReader(file)}
    failed = locks not in (None, 0)
    if failed:
        print(f"hot_path_counts: {locks} instructions with a lock prefix in the functions of the hits")
    for case in sorted(counts.keys() | expected.keys()):
        now, before = counts.get(case), expected.get(case)
        grown = now is None or before is None or now > before * TOLERANCE
        failed = failed or grown
        print(f"{case:32} {before} -> {now}{'   GROWN' if grown else ''}")
    for size in ("512", "1048576"):
        pool, arena, deep = (counts.get(f"{door}/{size}", 0) for door in ("pool", "arena", "arena_four_levels"))
        if deep != arena or arena > pool * TOLERANCE:
            failed = True
            print(f"{size}: {pool} without an arena, {arena} in one, {deep} four levels deep: not equal")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
