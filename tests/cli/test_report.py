#!/usr/bin/env python3
"""The page of `tenure compare --report`: what is in it, and how it looks and works in a real browser.

The environment names the program: TENURE_CLI=path/to/tenure. The browser's part is skipped where there is no Chromium;
with TENURE_SCREENSHOTS=FOLDER it leaves there what it saw.
"""

import gzip
import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import browser  # noqa: E402

CLI = os.path.abspath(os.environ.get("TENURE_CLI", "tenure"))
TRACES = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "traces"
HEADER = "t_us,op,id,bytes,stream\n"
RMM_LOG = """Thread,Time,Action,Pointer,Size,Stream
1,10:00:00.000001,allocate,0x7f0000000000,1000000,0x0
1,10:00:00.000009,allocate,0x7f0000400000,5000000,0x1a
1,10:00:00.000019,free,0x7f0000000000,1000000,0x0
1,10:00:01.000029,free,0x7f0000400000,5000000,0x1a
"""
PEERS = "workload,native_reserved,expandable_reserved,mallocasync_reserved,recorded_reserved\n"
VOID = {"meta", "br", "line", "path", "input"}


class Outline(html.parser.HTMLParser):
    """Checks that tags close in order, ids are unique and nothing is loaded; collects texts."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.problems, self.texts = [], set(), [], [], []
        self.feed(text)
        self.close()
        if self.open:
            self.problems.append(f"left open: {self.open}")

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        if given.get("id") in self.ids:
            self.problems.append(f"id {given['id']} is there twice")
        if "id" in given:
            self.ids.add(given["id"])
        for name in ("src", "href", "srcset", "action"):
            if name in given and not given[name].startswith("#"):
                self.problems.append(f"{tag} loads {given[name]}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes something else")

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def data_of(text):
    found = re.search(r'<script type="application/json" id="comparison">(.*?)</script>', text, re.DOTALL)
    return json.loads(found.group(1))


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tenure-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content)
        return path

    def run_cli(self, *args):
        return subprocess.run([CLI, "compare", *map(str, args), "--repeat", "1"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)  # fmt: skip

    def page_of(self, *args, code=0):
        out = self.folder / "page.html"
        r = self.run_cli(*args, "--report", out)
        self.assertEqual((r.returncode, r.stderr), (code, b""))
        self.assertEqual([p.name for p in self.folder.glob("*.html")], ["page.html"])
        return out.read_text(encoding="utf-8"), r.stdout.decode()

    def spikes(self, events=30000):
        """A program whose highest and lowest moments last one event each."""
        lines, live = [HEADER], 0
        for i in range(events // 2):
            size = 900_000_000 if i == 7001 else 1000
            lines.append(f"{10 * i},a,{i},{size},0\n{10 * i + 5},f,{i},{size},0\n")
        return self.write("spikes.csv", "".join(lines))

    def test_the_page_is_sound_and_complete(self):
        trace = TRACES / "multistream_prefetch.csv.gz"
        text, table = self.page_of(trace)
        outline = Outline(text)
        self.assertEqual(outline.problems, [])
        self.assertIsNone(re.search(r"@import|url\(|<link|<img|<iframe", text))
        seen = " ".join(outline.texts)
        for said in ("PyTorch native", "PyTorch expandable", "cudaMallocAsync", "3.78 GiB", "remap"):
            self.assertIn(said, seen)
        answer = re.search(r'<p class="answer">(.*?)</p>', text).group(1)
        self.assertRegex(answer, r"remap holds least, 1\.8\d GiB .*saves 1\.9\d GiB \(5\d%\) of the 3\.78 GiB")
        self.assertIn(answer.replace("&#39;", "'"), table)
        rows = re.findall(r"<tr(?: class=\"(\w+)\")?><th scope=\"row\">([^<]+)</th>", text)
        self.assertEqual([name for kind, name in rows if kind == "peer"],
                         ["PyTorch native", "PyTorch expandable", "cudaMallocAsync"])  # fmt: skip
        self.assertEqual([name for kind, name in rows if kind == "best"], ["remap"])

    def test_a_replay_on_a_gpu_has_maps_too(self):
        trace = TRACES / "multistream_prefetch.csv.gz"
        r = self.run_cli(trace, "--device", "cuda", "--policy", "all", "--report", "-")
        if r.returncode == 2 and b"CUDA" in r.stderr:
            self.skipTest(r.stderr.decode().strip())
        self.assertEqual((r.returncode, r.stderr), (0, b""))
        (drawn,) = data_of(r.stdout.decode())["traces"]
        for row in drawn["rows"]:
            # As long as the memory at the moment of the picture, which is nearly the peak.
            mapped = len(row["map"]["cells"]) // 2 * drawn["cell_bytes"]
            self.assertGreater(mapped, 0.9 * row["peak"], row["policy"])
            self.assertLess(mapped, 1.1 * row["peak"], row["policy"])

    def test_the_data_agree_with_the_figures(self):
        trace = TRACES / "multistream_prefetch.csv.gz"
        out = self.folder / "out.json"
        text, _ = self.page_of(trace, "--json", out)
        rows = {r["policy"]: r for r in json.loads(out.read_text())}
        (drawn,) = data_of(text)["traces"]
        self.assertEqual({r["policy"] for r in drawn["rows"]}, set(rows))
        self.assertLessEqual(2 * len(drawn["event"]), 2000)
        self.assertEqual(max(drawn["live"][1]), drawn["needed"])
        for row in drawn["rows"]:
            wanted = rows[row["policy"]]["reserved_peak"]
            self.assertEqual(row["peak"], wanted)
            highest = max(high for _, _, high in row["reserved"])
            # What is taken and given back within one event is in the peak alone.
            self.assertTrue(0.97 * wanted <= highest <= wanted, (row["policy"], highest, wanted))
            self.assertTrue(all(low <= high for _, low, high in row["reserved"]))
            cells = row["map"]["cells"]
            self.assertAlmostEqual(len(cells) / 2 * drawn["cell_bytes"], highest, delta=2 * drawn["cell_bytes"] + 0.03 * highest)
            self.assertRegex(cells, r"\A(?:[0-8][0-8]|xx)*\Z")
            live = sum(int(cells[i]) for i in range(0, len(cells), 2) if cells[i] != "x") / 8 * drawn["cell_bytes"]
            self.assertLess(live, highest * 1.02)

    def test_a_moment_is_not_lost_among_many_events(self):
        text, _ = self.page_of(self.spikes(), "--policy", "best_fit,caching")
        (drawn,) = data_of(text)["traces"]
        self.assertLessEqual(len(drawn["event"]), 1000)
        self.assertEqual(drawn["events"], 30000)
        self.assertEqual(max(drawn["live"][1]), 900_000_256)
        self.assertEqual(min(drawn["live"][0]), 0)
        self.assertEqual(sum(high > 1_000_000 for high in drawn["live"][1]), 1)
        self.assertEqual(drawn["rows"][0]["peak_event"], 14002)

    def test_names_from_outside_stay_text(self):
        name = '<script>alert(1)</script>&"\'.csv'.replace("/", "_")
        trace = self.write(name, HEADER + "0,a,1,100,0\n5,f,1,100,0\n")
        text, _ = self.page_of(trace, "--policy", "best_fit")
        self.assertNotIn("<script>alert", text)
        self.assertEqual(Outline(text).problems, [])
        self.assertEqual(data_of(text)["traces"][0]["name"], name[:-4])

    def test_tiny_and_odd_traces(self):
        for body in ("0,a,1,0,0\n", "0,a,1,1,0\n", "0,a,1,100,0\n0,f,1,100,0\n0,c,1,100,0\n", "5,a,1,4096,3\n9,u,1,0,4\n12,f,1,0,3\n"):
            with self.subTest(body):
                text, _ = self.page_of(self.write("t.csv", HEADER + body))
                self.assertEqual(Outline(text).problems, [])
                self.assertNotIn("nan", re.sub(r"<style.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL))

    def test_an_rmm_log_is_answered_against_the_scheme_of_pytorch(self):
        text, table = self.page_of(self.write("rmm.csv", RMM_LOG))
        self.assertEqual(Outline(text).problems, [])
        self.assertRegex(table, r"\nrmm: \w+ holds least, .* that PyTorch's scheme \(caching\) holds\.")
        self.assertIn("(caching) holds", text)
        _, table = self.page_of(self.write("rmm.csv", RMM_LOG), "--policy", "best_fit")
        self.assertIn("the trace does not say what its own allocator reserved", table)

    def test_what_the_recording_allocator_reserved_comes_first(self):
        trace = self.write("mine.csv", HEADER + "0,a,1,1000000,0\n9,f,1,1000000,0\n")
        self.write("peers.csv", PEERS + "mine,900000000,,,400000000\n")
        text, table = self.page_of(trace, "--policy", "best_fit:segment_bytes=2MiB")
        self.assertIn("of the 381.46 MiB that its own allocator reserved while it was recorded", table)
        self.assertIn("as recorded", table)
        self.assertEqual(data_of(text)["traces"][0]["peers"],
                         [{"name": "as recorded", "reserved": 400000000}, {"name": "PyTorch native", "reserved": 900000000}])  # fmt: skip
        self.write("peers.csv", PEERS + "mine,,,,400000000\n")
        self.assertNotIn("torch native", self.page_of(trace, "--policy", "best_fit")[1])
        self.write("peers.csv", PEERS + "mine,,,,much\n")
        r = self.run_cli(trace, "--report", self.folder / "page.html")
        self.assertEqual(r.returncode, 2)
        self.assertIn(b"recorded_reserved", r.stderr)

    def test_refusals_are_no_answer(self):
        trace = self.write("big.csv", HEADER + "0,a,1,1000000000,0\n9,f,1,1000000000,0\n")
        text, table = self.page_of(trace, "--limit", "100MiB", code=3)
        self.assertEqual(Outline(text).problems, [])
        self.assertIn("no policy carried it out without a refusal; it has 953.67 MiB live", table)
        self.assertIn("at most 100 MiB", text)
        self.assertIsNone(data_of(text)["traces"][0]["best"])

    def test_where_the_page_goes(self):
        trace = self.write("t.csv", HEADER + "0,a,1,100,0\n")
        r = self.run_cli(trace, "--report", "-")
        self.assertTrue(r.stdout.startswith(b"<!DOCTYPE html>"))
        self.assertTrue(r.stdout.endswith(b"</html>\n"))
        r = self.run_cli(trace, "--report", "-", "--json", "-")
        self.assertEqual((r.returncode, r.stdout), (2, b""))
        r = self.run_cli(trace, "--report", self.folder / "no" / "x.html")
        self.assertEqual((r.returncode, r.stdout, r.stderr.count(b"\n")), (2, b"", 1))

    def test_a_long_trace_makes_a_small_page(self):
        long = self.folder / "long.csv.gz"
        with gzip.open(long, "wt", compresslevel=1) as file:
            file.write(HEADER)
            for i in range(200_000):
                file.write(f"{2 * i},a,{i},{512 * (1 + i * 7919 % 4000)},0\n{2 * i + 1},f,{i},{512 * (1 + i * 7919 % 4000)},0\n")
        text, _ = self.page_of(long, "--policy", "caching,remap")
        self.assertLess(len(text), 200_000)


@unittest.skipIf(browser.find() is None, "no Chromium here (apt-get install chromium, or TENURE_BROWSER=PATH)")
@unittest.skipIf(os.environ.get("TENURE_SANITIZERS"), "the browser sees the same page without sanitizers")
class BrowserTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="tenure-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.path = cls.folder / "page.html"
        subprocess.run([CLI, "compare", TRACES / "multistream_prefetch.csv.gz", TRACES / "gnn_train.csv.gz", "--repeat", "1",
                        "--quiet", "--report", cls.path], check=True, timeout=300)  # fmt: skip
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.__exit__)

    def open(self, width, height, **how):
        page = self.browser.open(self.path, width, height, **how)
        self.assertEqual(page.errors(), [])
        return page

    def keep(self, page, name, **how):
        folder = os.environ.get("TENURE_SCREENSHOTS")
        if folder:
            page.screenshot(os.path.join(folder, name), **how)

    def test_desktop(self):
        page = self.open(1280, 900)
        self.assertEqual(page.evaluate("document.querySelectorAll('.chart svg').length"), 2)
        self.assertGreater(page.evaluate("document.querySelectorAll('.chart svg path').length"), 20)
        self.assertEqual(page.evaluate("document.querySelectorAll('.map canvas').length"), 14)
        # The maps are drawn: more than one colour, and longer for who holds more.
        painted = page.evaluate(
            """(() => [...document.querySelectorAll('.map canvas')].map((c) => {
              const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
              for (let i = 0; i < d.length; i += 4) seen.add((d[i] << 16) | (d[i + 1] << 8) | d[i + 2]);
              return seen.size;
            }))()"""
        )
        self.assertTrue(all(n > 2 for n in painted), painted)
        self.assertTrue(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
        self.assertEqual(page.errors(), [])
        self.keep(page, "desktop.png")

    def test_phone(self):
        page = self.open(390, 844, scale=2)
        self.assertTrue(page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways")
        too_small = page.evaluate("[...document.querySelectorAll('p, li, label, td, svg text')].filter((e) => parseFloat(getComputedStyle(e).fontSize) < 10.5).length")
        self.assertEqual(too_small, 0)
        # Drawn for this width, not shrunk to it.
        self.assertGreater(page.evaluate("(() => { const s = document.querySelector('.chart svg'); return s.getBoundingClientRect().width / s.viewBox.baseVal.width; })()"), 0.95)
        hidden = page.evaluate("[...document.querySelectorAll('.bars .name')].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)")
        self.assertEqual(hidden, [])
        # The column that stays when the table is pushed sideways is marked as the rest of its row.
        marked = page.evaluate("[...document.querySelectorAll('tr.best')].map((r) => [r.cells[0], r.cells[1]].map((c) => getComputedStyle(c).backgroundColor))")
        self.assertTrue(marked and all(first == second for first, second in marked), marked)
        self.keep(page, "phone.png")

    def test_dark(self):
        page = self.open(1280, 900, dark=True)
        background, ink = (page.evaluate(f"getComputedStyle(document.body).{p}") for p in ("backgroundColor", "color"))
        light = lambda c: sum(map(int, re.findall(r"\d+", c)[:3]))  # noqa: E731
        self.assertLess(light(background), 150)
        self.assertGreater(light(ink), 500)
        self.keep(page, "dark.png")

    def test_print(self):
        page = self.open(1280, 900, dark=True)
        out = os.path.join(os.environ.get("TENURE_SCREENSHOTS") or str(self.folder), "page.pdf")
        page.pdf(out)
        content = pathlib.Path(out).read_bytes()
        self.assertTrue(content.startswith(b"%PDF"))
        pages = len(re.findall(rb"/Type\s*/Page\b", content))
        self.assertTrue(2 <= pages <= 6, pages)
        # The maps were drawn in the colours of paper, and are dark again.
        drawn = "(() => { const c = document.querySelector('.map canvas'); return [...c.getContext('2d').getImageData(1, 1, 1, 1).data]; })()"
        page.evaluate("window.seen = []; for (const e of ['beforeprint', 'afterprint']) addEventListener(e, () => seen.push(%s[0]))" % drawn)
        page.pdf(out)
        before, after = page.evaluate("window.seen.map((v) => v)")
        self.assertNotEqual(before, after)
        page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.assertEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), "rgb(255, 255, 255)")
        # A button would be left out of the head that is repeated on the table's next page.
        self.assertEqual(page.evaluate("getComputedStyle(document.querySelector('thead button')).display"), "contents")

    def order(self, page, column):
        return page.evaluate(f"[...document.querySelector('table.sortable').tBodies[0].rows].map((r) => r.cells[{column}].dataset.value ?? r.cells[{column}].textContent)")

    def test_the_table_sorts_by_mouse_and_keyboard(self):
        page = self.open(1280, 900)
        sort = "document.querySelectorAll('table.sortable th button')[%d]"
        page.evaluate(sort % 3 + ".click()")
        ratios = [float(v) for v in self.order(page, 3)]
        self.assertEqual(ratios, sorted(ratios))
        self.assertEqual(page.evaluate("document.querySelectorAll('th[aria-sort]').length"), 1)
        self.assertIn("sorted by ratio, ascending", page.evaluate("document.getElementById('sorted').textContent"))
        page.evaluate(sort % 3 + ".focus()")
        page.press("Enter")
        self.assertEqual([float(v) for v in self.order(page, 3)], ratios[::-1])
        self.assertEqual(page.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')"), "descending")
        page.evaluate(sort % 0 + ".click()")
        names = self.order(page, 0)
        self.assertEqual(names, sorted(names))
        # Driver time is not known of peers: they stay below both ways.
        for _ in range(2):
            page.evaluate(sort % 8 + ".click()")
            values = self.order(page, 8)
            self.assertEqual(values[-6:], [""] * 6)
            self.assertTrue(all(values[:-6]))

    def test_the_chart_answers_pointer_and_keys(self):
        page = self.open(1280, 900)
        readout = "document.querySelector('.readout').textContent"
        page.evaluate("document.querySelector('.chart svg').focus()")
        page.press("End")
        self.assertRegex(page.evaluate(readout), r"live .*; best_fit .*remap")
        where = page.evaluate("(() => { const s = document.querySelector('.chart svg'); s.scrollIntoView(); const b = s.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
        page.call("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])
        self.assertNotIn("Point at", page.evaluate(readout))
        before = page.evaluate("document.querySelectorAll('.chart svg')[0].querySelectorAll('path').length")
        page.evaluate("document.querySelector('.legend input').click()")
        self.assertLess(page.evaluate("document.querySelectorAll('.chart svg')[0].querySelectorAll('path').length"), before)
        page.evaluate("document.querySelectorAll('.axis input')[1].click()")
        self.assertRegex(page.evaluate("document.querySelector('.chart svg').textContent"), r"\d s|\d ms")
        self.assertEqual(page.errors(), [])

    def test_everything_has_a_name_for_who_cannot_see_it(self):
        page = self.open(1280, 900)
        nameless = page.evaluate("[...document.querySelectorAll('svg[role=img], canvas, [role=region], nav')].filter((e) => !e.getAttribute('aria-label')).length")
        self.assertEqual(nameless, 0)
        self.assertEqual(page.evaluate("document.querySelectorAll('input').length"),
                         page.evaluate("document.querySelectorAll('label input').length"))  # fmt: skip
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((h) => +h.tagName[1])")
        self.assertEqual(levels[0], 1)
        self.assertTrue(page.evaluate("document.documentElement.lang") == "en")


if __name__ == "__main__":
    unittest.main()
