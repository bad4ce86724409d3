#!/usr/bin/env python3
"""Variants of recorded traces, in which all large sizes are others: what a policy holds on programs it was not chosen on.

    change_sizes.py OUTPUT TRACE.csv.gz...  [--by 0.15] [--from 1048576] [--variants 4] [--seed 1]
    tenure compare OUTPUT/*.csv.gz --policy remap,remap:tight=on,best_fit

Each size from `--from` bytes on is multiplied by a factor of its own between 1 - by and 1 + by, the same for each block of
that size, and rounded down to 512 bytes. So a program keeps its order, its lifetimes and which of its blocks are equally
large. Variant i of a trace is written as OUTPUT/TRACE.i.csv.gz; the same seed writes the same files.
"""

import argparse
import csv
import gzip
import pathlib
import random
import sys

GRANULE = 512


def change(rows, by, least, rng):
    """The rows of a trace, header first, with other sizes. Frees and completions repeat their block's size."""
    header = next(rows)
    op, block, size = (header.index(name) for name in ("op", "id", "bytes"))
    factors, sizes = {}, {}
    yield header
    for row in rows:
        if row[op] == "a":
            n = int(row[size])
            if n >= least:
                n = int(n * factors.setdefault(n, rng.uniform(1 - by, 1 + by))) // GRANULE * GRANULE
            sizes[row[block]] = str(n)
        if row[op] in "afc":
            row[size] = sizes.get(row[block], row[size])
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("traces", type=pathlib.Path, nargs="+")
    parser.add_argument("--by", type=float, default=0.15)
    parser.add_argument("--from", dest="least", type=int, default=1 << 20, metavar="BYTES")
    parser.add_argument("--variants", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if not 0 < given.by < 1:
        parser.error("--by is a part: between 0 and 1")
    if given.variants < 1 or given.least < GRANULE:
        parser.error(f"--variants is at least 1, --from at least {GRANULE}")
    given.output.mkdir(parents=True, exist_ok=True)
    for trace in given.traces:
        name = trace.name.removesuffix(".gz").removesuffix(".csv")
        opener = gzip.open if trace.suffix == ".gz" else open
        for i in range(1, given.variants + 1):
            rng = random.Random(f"{given.seed} {name} {i}")
            out = given.output / f"{name}.{i}.csv.gz"
            with opener(trace, "rt", newline="") as source, gzip.open(out, "wt", newline="", compresslevel=6) as target:
                rows = csv.reader(source)
                try:
                    csv.writer(target, lineterminator="\n").writerows(change(rows, given.by, given.least, rng))
                except (StopIteration, ValueError, IndexError, RuntimeError) as e:
                    sys.exit(f"{trace}: no trace: {e}")


if __name__ == "__main__":
    main()
