#!/usr/bin/env python3
"""End-to-end tests of `tenure top` and `tenure report`. The environment names the program: TENURE_CLI=path/to/tenure.

Runs under unittest or pytest.
"""

import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

CLI = os.path.abspath(os.environ.get("TENURE_CLI", "tenure"))
TRACE = "t_us,op,id,bytes,stream,arena\n0,m,0,8000,0,alice\n5,a,1,4000,0,alice\n9,a,2,900,0,<bob>\n12,f,1,4000,0,alice\n"


class OperatorTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tenure-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_cli(self, *args, env=None, timeout=120):
        return subprocess.run([CLI, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout, env={**os.environ, **(env or {})})

    def refuse(self, message, *args, env=None, timeout=120):
        r = self.run_cli(*args, env=env, timeout=timeout)
        self.assertEqual(r.returncode, 2)
        self.assertEqual(r.stdout, b"")
        self.assertEqual(r.stderr.count(b"\n"), 1)
        self.assertIn(message, r.stderr.decode())

    def test_top_without_pages(self):
        self.refuse("no process publishes its arenas", "top", "--once", "--dir", self.folder)
        self.refuse("no process publishes its arenas", "top", env={"TENURE_PUBLISH_DIR": str(self.folder)})
        self.refuse("process 1 publishes no arenas", "top", 1, "--dir", self.folder)
        self.refuse("No such file", "top", "--dir", self.folder / "absent")
        self.refuse("PID", "top", "nobody")
        self.refuse("--interval", "top", "--interval", 0)

    def test_report_is_one_page(self):
        trace = self.folder / "run.csv"
        trace.write_text(TRACE)
        page = self.folder / "run.html"
        r = self.run_cli("report", trace, "-o", page)
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, b"", b""))
        html = page.read_text()
        self.assertEqual(html, self.run_cli("report", trace, "-o", "-").stdout.decode())
        self.assertIn("alice", html)
        self.assertIn("&lt;bob&gt;", html)
        self.assertNotIn("<bob>", html)
        self.assertIsNone(re.search(r"https?:|<script|<link|<img|url\(|@import", html))
        self.assertEqual(html.count("<svg"), 3)
        self.assertEqual(html.count("<svg"), html.count("</svg>"))

    def test_report_refuses_what_is_no_run(self):
        bad = self.folder / "bad.csv"
        bad.write_text("nothing\n")
        self.refuse("bad.csv:1", "report", bad, "-o", self.folder / "x.html")
        bad.write_text('{"schema":"other"}\n')
        self.refuse("bad.csv:1", "report", bad, "-o", self.folder / "x.html")
        self.refuse("absent", "report", self.folder / "absent", "-o", self.folder / "x.html")
        self.assertEqual([p.name for p in self.folder.iterdir()], ["bad.csv"])

    def arenas(self, time_ns, **values):
        row = {"id": 1, "kind": "arena", "path": "a", "own": 5, "max": None, **values}
        return json.dumps({"schema": "tenure-arenas", "version": 1, "time_ns": time_ns, "more": 0,
                           "process": {"pid": 7, "started": 1, "program": "x"}, "arenas": [row]})

    def draw(self, text, name="run"):
        run = self.folder / name
        run.write_text(text)
        return self.run_cli("report", run, "-o", "-", timeout=20)

    def test_report_of_absurd_sizes_ends(self):
        header = "t_us,op,id,bytes,stream,arena\n"
        for events in ("0,a,1,18446744073709551615,0,x\n",
                       "0,a,1,5,0,x\n1,m,0,18000000000000000000,0,x\n",
                       "0,a,1,18446744073709551615,0,x\n1,a,2,18446744073709551615,0,y\n"):
            with self.subTest(events):
                r = self.draw(header + events)
                self.assertEqual((r.returncode, r.stderr), (0, b""))
                self.assertLess(len(r.stdout), 100_000)
        for values in ({"own": 2**64 - 1}, {"max": 2**64 - 2}, {"own": 18 * 10**18}):
            with self.subTest(values):
                self.assertEqual(self.draw(self.arenas(1, **values) + "\n").returncode, 0)
        for values in ({"max": -5}, {"own": -1}, {"own": 2**64}, {"own": 0.5}, {"id": -1}):
            with self.subTest(values):
                r = self.draw(self.arenas(1, **values) + "\n")
                self.assertEqual((r.returncode, r.stdout), (2, b""))
                self.assertIn(b"run:1: ", r.stderr)
                self.assertIn(b"is no whole number", r.stderr)

    def test_report_of_a_record_that_was_cut(self):
        whole = self.arenas(10**9) + "\n" + self.arenas(2 * 10**9)
        r = self.draw(whole[:-5])
        self.assertEqual(r.returncode, 0)
        self.assertIn(b"run:2: the last line is cut, and left out", r.stderr)
        self.assertIn(b"Each of 1 points", r.stdout)
        self.assertIn(b"Each of 2 points", self.draw(whole).stdout)
        self.assertEqual(self.draw(whole[:-5] + "\n").returncode, 2)

    def test_report_of_a_line_that_is_too_long(self):
        r = self.draw(self.arenas(10**9) + "\n" + "x" * (5 << 20))
        self.assertEqual((r.returncode, r.stdout), (2, b""))
        self.assertIn(b"run:2: line longer", r.stderr)

    def test_report_of_compressed_records(self):
        run = self.folder / "run.gz"
        member = gzip.compress((self.arenas(10**9) + "\n").encode())
        run.write_bytes(member + gzip.compress((self.arenas(2 * 10**9) + "\n").encode()))
        self.assertIn(b"Each of 2 points", self.run_cli("report", run, "-o", "-").stdout)
        run.write_bytes(member + member[:1] + b"x" + member[2:])
        self.refuse("corrupt gzip data", "report", run, "-o", "-")

    def test_report_to_stdout(self):
        run = self.folder / "run.csv"
        run.write_text(TRACE)
        with open("/dev/full", "wb") as full:
            r = subprocess.run([CLI, "report", run, "-o", "-"], stdout=full, stderr=subprocess.PIPE, timeout=20)
        self.assertEqual(r.returncode, 2)
        self.assertIn(b"cannot write to stdout: No space left on device", r.stderr)
        read, write = os.pipe()
        os.close(read)
        r = subprocess.run([CLI, "report", run, "-o", "-"], stdout=write, stderr=subprocess.PIPE, timeout=20)
        os.close(write)
        self.assertEqual((r.returncode, r.stderr), (0, b""))

    def test_top_is_not_held_up_by_other_files(self):
        os.mkfifo(self.folder / "tenure-1-1")
        with open("/proc/1/stat") as stat:
            started = stat.read().rpartition(")")[2].split()[19]
        os.mkfifo(self.folder / f"tenure-1-{started}")
        (self.folder / "tenure-2-2").touch()
        os.truncate(self.folder / "tenure-2-2", 1 << 40)
        self.refuse("no process publishes its arenas", "top", "--once", "--dir", self.folder, timeout=20)
        self.refuse("not a page of arenas", "top", 1, "--once", "--dir", self.folder, timeout=20)


if __name__ == "__main__":
    unittest.main()
