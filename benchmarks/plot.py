#!/usr/bin/env python3
"""Tables and plots from the benchmarks' JSON.

    plot.py RESULTS OUTPUT

RESULTS: a folder with peers.json, latency.json, scaling.json... as --benchmark_out writes them; what is missing is left
out. OUTPUT: gets results.md with one table a question, and SVG plots where matplotlib is installed.

All figures are medians of the repetitions. Plots tell subjects apart by hatching, marker and line as well as by colour,
so they can be read in grey and by colour-blind people.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

# Okabe and Ito's palette: distinct for all common kinds of colour blindness.
OURS, PEER, HARNESS = "#0072B2", "#E69F00", "#999999"
MARKERS = "osD^v<>pPX*hd+x"


class Results:
    """The medians of one program: {name without suffixes: entry of the JSON}."""

    def __init__(self, path):
        whole = json.loads(path.read_text(encoding="utf-8"))
        self.context = whole["context"]
        self.entries = {}
        self.errors = []
        for entry in whole["benchmarks"]:
            name = re.sub(r"/(iterations:\d+|manual_time|real_time|repeats:\d+)(?=/|$)", "", entry["run_name"])
            if entry.get("error_occurred"):
                if (name, entry.get("error_message", "")) not in self.errors:
                    self.errors.append((name, entry.get("error_message", "")))
                continue
            alone = entry["run_type"] == "iteration" and entry.get("repetitions", 1) == 1
            if alone or entry.get("aggregate_name") == "median":
                self.entries[name] = entry

    def value(self, *parts, counter=None, scale=1.0):
        """The time in ns, or the counter times `scale`; None if there is none."""
        entry = self.entries.get("/".join(str(p) for p in parts))
        if entry is None:
            return None
        if counter is not None:
            return entry.get(counter) * scale if counter in entry else None
        return entry["real_time"] * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[entry["time_unit"]]

    def parts(self, kind, position):
        """All that stands at `position` in the names that begin with `kind`, in order."""
        names = [n.split("/") for n in self.entries]
        return list(dict.fromkeys(n[position] for n in names if n[0] == kind and len(n) > position))

    def side(self, subject):
        if subject == "nothing":
            return "harness"
        version = self.context.get(subject)
        return "ours" if version is None or version == self.context["tenure"] else "peer"


def number(value):
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def bytes_text(text):
    n = int(text)
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n} {unit}"
        n //= 1024
    return f"{n} GiB"


def live_text(text):
    return f"{int(text):,} live".replace(",", " ")


def table(title, columns, rows):
    """Markdown; rows: [(name, [value or text])]. Rows without any value are left out."""
    rows = [(name, values) for name, values in rows if any(v is not None for v in values)]
    if not rows:
        return ""
    text = lambda v: v if isinstance(v, str) else number(v)
    lines = [f"### {title}", "", "| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    lines += [f"| {name} | " + " | ".join(text(v) for v in values) + " |" for name, values in rows]
    return "\n".join(lines) + "\n"


# --- one function a program: the tables ------------------------------------------------------------------------------

def ratio_rows(results, rows, best):
    """The best of ours and of the peers in each column, and their ratio. `best`: min for times, max for rates."""
    def best_of(side):
        values = []
        for i in range(len(rows[0][1])):
            found = [(v[i], n) for n, v in rows if results.side(n) == side and v[i] is not None]
            values.append(best(found) if found else (None, ""))
        return values
    ours, peers = best_of("ours"), best_of("peer")
    cell = lambda v: None if v[0] is None else f"{number(v[0])} ({v[1]})"
    ratios = [None if None in (a[0], b[0]) else f"**{a[0] / b[0]:.3f}**" for a, b in zip(ours, peers)]
    return [("best of tenure", [cell(v) for v in ours]), ("best peer", [cell(v) for v in peers]),
            ("**tenure / peer**", ratios)]


def peers_columns(results, stream):
    """[(title, function of a subject)] of what is measured on one stream."""
    columns = []
    for size in results.parts("pair", 3):
        columns.append((bytes_text(size), lambda s, z=size: results.value("pair", s, stream, z)))
    for live in results.parts("replace", 3):
        columns.append((live_text(live), lambda s, n=live: results.value("replace", s, stream, n)))
    return columns


def peers_tables(results):
    subjects = results.parts("pair", 1)
    out = []
    for stream in results.parts("pair", 2):
        columns = peers_columns(results, stream)
        rows = [(s, [get(s) for _, get in columns]) for s in subjects]
        out.append(table(f"Beside other allocators: ns an allocation and free, one thread, {stream} stream",
                         [c for c, _ in columns], rows + ratio_rows(results, rows, min)))
    threads = results.parts("threads", 2)
    if threads:
        rows = [(s, [results.value("threads", s, n, counter="pairs", scale=1e-6) for n in threads]) for s in subjects]
        out.append(table("Beside other allocators: million pairs of 64 KiB a second, by threads, own streams", threads,
                         rows + ratio_rows(results, rows, max)))
    versions = [f"{s} {results.context[s]}" for s in subjects if results.side(s) == "peer" and s in results.context]
    if versions:
        out.append("Peers: " + ", ".join(versions) + ".\n")
    return out


def latency_tables(results):
    out = []
    for kind, text, what in (("pair", bytes_text, "ns an allocation and free"),
                             ("replace", live_text, "ns a random replacement")):
        for stream in results.parts(kind, 3):
            columns = results.parts(kind, 4)
            rows = [(f"{p} · {d}", [results.value(kind, p, d, stream, c) for c in columns])
                    for p in results.parts(kind, 1) for d in results.parts(kind, 2)]
            out.append(table(f"Latency: {what}, {stream} stream", [text(c) for c in columns], rows))
    return out


def scaling_tables(results):
    out = []
    titles = {"own_stream": "each thread on its own stream", "shared_stream": "all on one stream",
              "producer_consumer": "half of the threads allocate, the others free",
              "idle": "one works, the others hold what they kept"}
    for kind, title in titles.items():
        columns = results.parts(kind, 3)
        rows = [(f"{p} · {d}", [results.value(kind, p, d, n, counter="pairs", scale=1e-6) for n in columns])
                for p in results.parts(kind, 1) for d in results.parts(kind, 2)]
        out.append(table(f"Scaling: million pairs a second by threads, {title}", columns, rows))
    return out


def growth_tables(results):
    columns = results.parts("replace", 2)
    rows = [(p, [results.value("replace", p, n) for n in columns]) for p in results.parts("replace", 1)]
    return [table("Growth: ns a random replacement, by live blocks", [live_text(c) for c in columns], rows)]


def tail_tables(results):
    marks = ["p50", "p99", "p99_9", "p99_99", "worst"]
    rows = [("the clock itself", [results.value("clock", counter=m) for m in marks])]
    for p in results.parts("replace", 1):
        for load in results.parts("replace", 2):
            for call in ("allocate", "free"):
                rows.append((f"{p} · {load} · {call}",
                             [results.value("replace", p, load, counter=f"{call}_{m}") for m in marks]))
    return [table("Tail: ns of single calls", [m.replace("_", ".") for m in marks], rows)]


def tenancy_tables(results):
    counts = results.parts("tenants", 2)
    rows = [(p, [results.value("tenants", p, n) for n in counts] +
             [results.value("at_limit", p), results.value("refused", p)]) for p in results.parts("tenants", 1)]
    titles = [f"{n} arena{'s' if n != '1' else ''}" for n in counts] + ["full, one replaced", "full, refused"]
    return [table("Tenancy: ns an allocation and free of 64 KiB in a random arena", titles, rows)]


TABLES = {"peers": peers_tables, "latency": latency_tables, "scaling": scaling_tables, "growth": growth_tables,
          "tail": tail_tables, "tenancy": tenancy_tables}

# --- plots -----------------------------------------------------------------------------------------------------------

def style(results, subject, index):
    side = results.side(subject)
    colour = {"ours": OURS, "peer": PEER, "harness": HARNESS}[side]
    return {"color": colour, "marker": MARKERS[index % len(MARKERS)],
            "linestyle": {"ours": "-", "peer": "--", "harness": ":"}[side]}


def plot_bars(plt, results, stream, path):
    subjects = results.parts("pair", 1)[::-1]
    columns = [c for c in peers_columns(results, stream) if any(c[1](s) for s in subjects)]
    per_row = 3
    lines = -(-len(columns) // per_row)
    figure, axes = plt.subplots(lines, per_row, figsize=(11, 0.26 * len(subjects) * lines + 1), sharey=True, squeeze=False)
    for axis in axes.flat[len(columns):]:
        axis.set_visible(False)
    for axis, (title, get) in zip(axes.flat, columns):
        values = [get(s) or 0 for s in subjects]
        axis.set_title(title, fontsize=10)
        axis.set_xscale("log")
        axis.set_xlim(1, max(values) * 6)
        for i, (subject, value) in enumerate(zip(subjects, values)):
            side = results.side(subject)
            if value:
                axis.barh(i, value, color={"ours": OURS, "peer": PEER, "harness": HARNESS}[side],
                          hatch={"ours": "", "peer": "///", "harness": "..."}[side], edgecolor="black", linewidth=0.5)
            axis.text(max(value, 1) * 1.15, i, number(value or None), va="center", fontsize=7)
        axis.set_yticks(range(len(subjects)), subjects, fontsize=8)
        axis.tick_params(axis="x", labelsize=8)
    figure.suptitle(f"ns an allocation and free, one thread, {stream} stream (log scale; hatched: peers)", fontsize=11)
    figure.tight_layout()
    figure.savefig(path)


def plot_lines(plt, results, series, title, x_label, y_label, path):
    """series: {name: [(x, y)]}."""
    figure, axis = plt.subplots(figsize=(8, 5))
    ticks = sorted({x for points in series.values() for x, _ in points})
    for i, (name, points) in enumerate(series.items()):
        if points:
            axis.plot(*zip(*points), label=name, markersize=5, linewidth=1.3, **style(results, name, i))
    axis.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label, title=title)
    axis.set_xticks(ticks, [f"{t:,}".replace(",", " ") for t in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(path)


def plot_all(plt, all_results, output):
    made = []
    if "peers" in all_results:
        r = all_results["peers"]
        for stream in r.parts("pair", 2):
            made.append(f"peers_latency_{stream}.svg")
            plot_bars(plt, r, stream, output / made[-1])
        series = {s: [(int(n), v) for n in r.parts("threads", 2)
                      if (v := r.value("threads", s, n, counter="pairs", scale=1e-6))] for s in r.parts("threads", 1)}
        if series:
            made.append("peers_scaling.svg")
            plot_lines(plt, r, series, "Pairs of 64 KiB, each thread on its own stream (dashed: peers)", "threads",
                       "million pairs a second", output / made[-1])
    if "growth" in all_results:
        r = all_results["growth"]
        series = {p: [(int(n), v) for n in r.parts("replace", 2) if (v := r.value("replace", p, n))]
                  for p in r.parts("replace", 1)}
        made.append("growth.svg")
        plot_lines(plt, r, series, "Random replacement", "live blocks", "ns an allocation and free", output / made[-1])
    return made


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    source, output = Path(arguments[0]), Path(arguments[1])
    output.mkdir(parents=True, exist_ok=True)
    all_results = {name: Results(source / f"{name}.json") for name in TABLES if (source / f"{name}.json").exists()}
    if not all_results:
        print(f"{source}: none of {', '.join(TABLES)}.json", file=sys.stderr)
        return 2

    contexts = defaultdict(list)
    for name, results in all_results.items():
        c = results.context
        shown = [c.get(k) for k in ("device", "cpu")] + [f"{c.get('hardware_threads')} threads"]
        shown += [f"{label} {c[key]}" for key, label in (("driver", "driver"), ("cuda_driver", "CUDA of the driver"),
                                                         ("cuda_runtime", "CUDA runtime"), ("compiler", "compiler"))
                  if key in c]
        shown += [f"tenure {c.get('tenure')} at commit {c.get('git_commit')}"]
        contexts["; ".join(str(s) for s in shown)].append(name)
    text = ["".join(f"{', '.join(names)}: {context}.\n\n" for context, names in contexts.items())]
    for name, results in all_results.items():
        text += TABLES[name](results)
        text += [f"`{benchmark}` has no figure: {message}\n" for benchmark, message in results.errors]

    try:
        import matplotlib
        matplotlib.use("Agg")
        matplotlib.rcParams["svg.hashsalt"] = "tenure"  # the same file from the same figures
        from matplotlib import pyplot
    except ImportError:
        print("matplotlib is not installed: tables only", file=sys.stderr)
    else:
        text += [f"![{name}]({name})\n" for name in plot_all(pyplot, all_results, output)]
    (output / "results.md").write_text("\n".join(t for t in text if t), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
