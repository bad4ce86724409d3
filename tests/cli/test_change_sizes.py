#!/usr/bin/env python3
"""Tests of `benchmarks/change_sizes.py`. The environment names the program: TENURE_CLI=path/to/tenure."""

import csv
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLI = os.path.abspath(os.environ.get("TENURE_CLI", "tenure"))
PROGRAM = ROOT / "benchmarks" / "change_sizes.py"
TRACE = ROOT / "benchmarks" / "traces" / "resnet_train.csv.gz"
MIB = 1 << 20


class ChangeSizesTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tenure-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_program(self, *arguments):
        return subprocess.run([sys.executable, PROGRAM, *arguments], capture_output=True, text=True, check=False)

    def rows(self, path):
        with gzip.open(path, "rt", newline="") as f:
            return list(csv.DictReader(f))

    def test_sizes_change_and_nothing_else(self):
        done = self.run_program(self.folder / "out", TRACE, "--variants", "2", "--seed", "7")
        self.assertEqual(done.returncode, 0, done.stderr)
        before, after = self.rows(TRACE), self.rows(self.folder / "out" / "resnet_train.1.csv.gz")
        self.assertEqual(len(before), len(after))
        became = {}
        for x, y in zip(before, after):
            self.assertEqual([x[k] for k in ("t_us", "op", "id", "stream")], [y[k] for k in ("t_us", "op", "id", "stream")])
            if x["op"] != "a":
                continue
            n, m = int(x["bytes"]), int(y["bytes"])
            if n < MIB:
                self.assertEqual(n, m)
                continue
            self.assertEqual(became.setdefault(n, m), m)  # what was equally large is
            self.assertLess(abs(m - n), 0.15 * n + 512)
        self.assertGreater(sum(n != m for n, m in became.items()), len(became) // 2)
        self.assertNotEqual(after, self.rows(self.folder / "out" / "resnet_train.2.csv.gz"))

    def test_the_same_seed_gives_the_same(self):
        for folder in ("a", "b"):
            self.run_program(self.folder / folder, TRACE, "--variants", "1")
        self.run_program(self.folder / "c", TRACE, "--variants", "1", "--seed", "2")
        a, b, c = (self.rows(self.folder / f / "resnet_train.1.csv.gz") for f in "abc")
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)

    def test_the_command_reads_what_it_writes(self):
        self.run_program(self.folder, TRACE, "--variants", "1")
        done = subprocess.run(
            [CLI, "compare", self.folder / "resnet_train.1.csv.gz", "--policy", "remap", "--repeat", "1", "--json", "-"],
            capture_output=True, text=True, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(json.loads(done.stdout)[0]["completed"])

    def test_what_is_no_trace_is_an_error(self):
        for content in ("", "x\n", "t_us,op,id,bytes,stream\n0,a,1,many,0\n", "t_us,op,id,bytes,stream\n0\n"):
            path = self.folder / "bad.csv"
            path.write_text(content)
            done = self.run_program(self.folder / "out", path)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("bad.csv: no trace", done.stderr)
        for wrong in (["--by", "1"], ["--by", "0"], ["--variants", "0"], ["--from", "1"]):
            self.assertNotEqual(self.run_program(self.folder / "out", TRACE, *wrong).returncode, 0)


if __name__ == "__main__":
    unittest.main()
