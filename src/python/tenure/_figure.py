"""The figure of ``python -m tenure compare ... --png FILE``: what a page of the comparison shows, for paper."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, List, Tuple

# Okabe and Ito's palette; lines differ by dashes and bars by hatching as well, so grey print is enough.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A7A00", "#808080")
_DASHES: Tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 2, 2, 2, 2, 2)), (0, (12, 4)), (0, (1, 2)), (0, (4, 4)))
_GIB = float(1 << 30)


class FigureError(ValueError):
    """The figure cannot be drawn; the message says why and, where it can, what to do."""


def data_of(page: str) -> Dict[str, Any]:
    """The block of JSON in a page that ``tenure compare --report`` wrote."""
    with open(page, encoding="utf-8") as file:
        found = re.search(r'<script type="application/json" id="comparison">(.*?)</script>', file.read(), re.DOTALL)
    if found is None:
        raise FigureError(f"{page} is no page of tenure compare --report")
    data = json.loads(found.group(1))
    assert isinstance(data, dict)
    return data


def reserved_of(row: Dict[str, Any], spans: int) -> List[int]:
    """The highest number of reserved bytes in each span; the page lists the spans at which it changes."""
    values: List[int] = []
    changes = row["reserved"]
    for (begin, _, high), following in zip(changes, [*changes[1:], [spans]]):
        values += [high] * (following[0] - begin)
    return values


def draw(data: Dict[str, Any], path: str) -> None:
    """Write the figure, in the format that the ending of ``path`` names.

    Raises:
        FigureError: matplotlib is missing or cannot write such a file.
        OSError: the file cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise FigureError(f"figures need matplotlib: pip install matplotlib ({error})") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    traces = data["traces"]
    pyplot.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = pyplot.subplots(
        len(traces), 2, figsize=(7.2, 2.4 * len(traces)), squeeze=False, width_ratios=(3, 2), layout="constrained"
    )
    for (timeline, bars), trace in zip(axes, traces):
        _draw_timeline(timeline, trace)
        _draw_bars(bars, trace)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{os.getpid()}.{name}")  # a figure appears whole or not at all
    try:
        figure.savefig(temporary, dpi=200)
        os.replace(temporary, path)
    except ValueError as error:
        raise FigureError(f"{path}: {error}") from error
    finally:
        pyplot.close(figure)
        if os.path.exists(temporary):
            os.unlink(temporary)


def _draw_timeline(axes: Any, trace: Dict[str, Any]) -> None:
    events = trace["event"]
    axes.fill_between(events, [b / _GIB for b in trace["live"][1]], step="post", color="0.85", label="live")
    for k, row in enumerate(trace["rows"]):
        axes.plot(
            events,
            [b / _GIB for b in reserved_of(row, len(events))],
            drawstyle="steps-post",
            color=_COLOURS[k % 8],
            linestyle=_DASHES[k % 8],
            linewidth=1.8 if k == trace["best"] else 1.0,
            label=row["policy"],
        )
    axes.set_title(trace["name"], loc="left", fontweight="bold")
    axes.set_xlabel("event")
    axes.set_ylabel("reserved, GiB")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)


def _draw_bars(axes: Any, trace: Dict[str, Any]) -> None:
    needed = max(trace["needed"], 1)
    bars = [(row["policy"], row["peak"] / needed, False) for row in trace["rows"] if not row["refused"]]
    bars += [(peer["name"], peer["reserved"] / needed, True) for peer in trace["peers"]]
    bars.sort(key=lambda bar: bar[1], reverse=True)
    for place, (_, ratio, peer) in enumerate(bars):
        axes.barh(
            place,
            ratio,
            color="white" if peer else _COLOURS[0],
            edgecolor=_COLOURS[4] if peer else _COLOURS[0],
            hatch="////" if peer else None,
        )
        axes.text(ratio, place, f" {ratio:.3f}", va="center", fontsize=6.5)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("reserved / live, at the peaks")
    axes.set_xlim(0, max([ratio for _, ratio, _ in bars], default=1) * 1.2)
