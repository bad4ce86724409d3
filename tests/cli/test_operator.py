#!/usr/bin/env python3
"""End-to-end tests of `tenure top` and `tenure report`. The environment names the program: TENURE_CLI=path/to/tenure.

Runs under unittest or pytest.
"""

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

    def run_cli(self, *args, env=None):
        return subprocess.run([CLI, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120, env={**os.environ, **(env or {})})

    def refuse(self, message, *args, env=None):
        r = self.run_cli(*args, env=env)
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


if __name__ == "__main__":
    unittest.main()
