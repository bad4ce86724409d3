#!/usr/bin/env python3
"""Every piece of code in the pages for users is compiled or run.

A page says above each fenced block, in an HTML comment, what is done with it:

    <!-- snippet: run -->        C++ statements: compiled and run on the simulated device, which is `gpu`; `stream` is one of
                                 its streams. #include lines move to the top, definitions may be local
    <!-- snippet: program -->    a whole C++ program: compiled and run
    <!-- snippet: cuda -->       C++ that needs CUDA's headers and a GPU: compiled by nvcc where there is one; each block is
                                 a function of its own, with `stream` (a cudaStream_t) and `pointer`
    <!-- snippet: sh -->         run by bash in an empty folder in which `traces` is; `tenure` is on the PATH
    <!-- snippet: python -->     run with the package of this repository
    <!-- snippet: not run: WHY -->

The environment names the program: TENURE_CLI=path/to/tenure; and may name compilers: CXX, CUDACXX.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLI = os.path.abspath(os.environ.get("TENURE_CLI", "tenure"))
PAGES = sorted(
    [*(ROOT / "docs/start").glob("*.md"), *(ROOT / "docs/migrate").glob("*.md")]
    + [ROOT / "docs" / f"{name}.md" for name in ("choosing", "options", "errors", "faq", "report", "neighbours", "limits", "shared-gpu", "operators", "several-streams")]
)
LANGUAGES = ("cpp", "sh", "python")
KINDS = {"run": "cpp", "program": "cpp", "cuda": "cpp", "sh": "sh", "python": "python"}
BLOCK = re.compile(r"(?:<!-- snippet: (?P<kind>.*?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)

RUN_MAIN = """
int main() {
    for (auto* const snippet : {%s}) {
        tenure::sim::device gpu;
        const tenure::stream_handle stream = gpu.create_stream();
        snippet(gpu, stream);
        gpu.destroy_stream(stream);
    }
}
"""


def snippets():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            if found["language"] not in LANGUAGES:
                continue
            line = text.count("\n", 0, found.start("code"))
            yield page.relative_to(ROOT), line, found["language"], found["kind"], found["code"]


def of_kind(kind):
    return [(page, line, code) for page, line, _, given, code in snippets() if given == kind]


def as_functions(blocks, signature):
    """One source: the blocks as functions, includes first. Returns it and the functions' names."""
    includes, functions, names = [], [], []
    for page, line, code in blocks:
        body = []
        for row in code.splitlines():
            (includes if row.startswith("#include") else body).append(row)
        name = f"{re.sub(r'[^a-z0-9]', '_', str(page))}_{line}"
        names.append(name)
        functions.append(f'void {name}{signature} {{\n#line {line + 1} "{page}"\n' + "\n".join(body) + "\n}\n")
    head = "".join(dict.fromkeys(row + "\n" for row in includes))
    return head + "using namespace tenure::literals;\n" + "\n".join(functions), names


@unittest.skipIf(os.environ.get("TENURE_SANITIZERS"), "the pages are the same without sanitizers")
class SnippetTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tenure-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def done(self, command, **kwargs):
        r = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1500, **kwargs)
        self.assertEqual(r.returncode, 0, r.stdout.decode(errors="replace")[-6000:])
        return r.stdout.decode()

    def compile(self, source):
        compiler = os.environ.get("CXX") or "c++"
        out = self.folder / source.stem
        self.done([compiler, "-std=c++20", "-O0", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "include", source, "-o", out,
                   "-pthread", "-ldl"])  # fmt: skip
        return out

    def test_every_block_says_what_is_done_with_it(self):
        seen = list(snippets())
        self.assertGreater(len(seen), 20)
        for page, line, language, kind, _ in seen:
            with self.subTest(f"{page}:{line}"):
                self.assertIsNotNone(kind, "no <!-- snippet: ... --> above it")
                if not kind.startswith("not run: "):
                    self.assertEqual(KINDS.get(kind), language)

    def test_statements(self):
        blocks = of_kind("run")
        source = self.folder / "statements.cpp"
        code, names = as_functions(blocks, "([[maybe_unused]] tenure::sim::device& gpu, [[maybe_unused]] tenure::stream_handle stream)")
        source.write_text("#include <tenure/tenure.hpp>\n" + code + RUN_MAIN % ", ".join(names))
        self.done([self.compile(source)], cwd=self.folder)

    def test_programs(self):
        for number, (page, line, code) in enumerate(of_kind("program")):
            with self.subTest(f"{page}:{line}"):
                source = self.folder / f"program{number}.cpp"
                source.write_text(f'#line {line + 1} "{page}"\n{code}')
                self.done([self.compile(source)], cwd=self.folder)

    def test_cuda(self):
        compiler = os.environ.get("CUDACXX") or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
        if not compiler:
            self.skipTest("no nvcc here")
        source = self.folder / "cuda.cu"
        code, _ = as_functions(of_kind("cuda"), "([[maybe_unused]] cudaStream_t stream, [[maybe_unused]] void* pointer)")
        source.write_text("#include <tenure/tenure.hpp>\n#include <tenure/device/cuda_device.hpp>\n" + code)
        self.done([compiler, "-std=c++20", "-arch=sm_90", "-O0", "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE",
                   "-diag-suppress=177,20011,2810", "-I", ROOT / "include", "-c", source, "-o", "/dev/null"])  # fmt: skip

    def test_shell(self):
        for page, line, code in of_kind("sh"):
            with self.subTest(f"{page}:{line}"):
                here = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
                (here / "traces").symlink_to(ROOT / "benchmarks" / "traces")
                environment = {
                    **os.environ,
                    "PATH": f"{os.path.dirname(CLI)}:{os.environ['PATH']}",
                    "PYTHONPATH": str(ROOT / "src/python"),
                    "TENURE_COMMAND": CLI,
                }
                self.done(["bash", "-euo", "pipefail", "-c", code], cwd=here, env=environment)

    def test_python(self):
        for page, line, code in of_kind("python"):
            with self.subTest(f"{page}:{line}"):
                self.done([sys.executable, "-c", code], cwd=self.folder, env={**os.environ, "PYTHONPATH": str(ROOT / "src/python")})

    def test_links_lead_somewhere(self):
        for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
            text = page.read_text(encoding="utf-8")
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
                if re.match(r"[a-z]+:", target):
                    continue
                with self.subTest(f"{page.relative_to(ROOT)}: {target}"):
                    self.assertTrue((page.parent / target).exists())


if __name__ == "__main__":
    unittest.main()
