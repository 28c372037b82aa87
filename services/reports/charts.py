"""Charts as SVG for a page: lines over time, bars, lanes of a timeline.

matplotlib draws them. Text stays text, and lines and text take the page's colours, so that a chart
also fits the dark theme.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from raylay.services.messages.plain_text import plain
from raylay.services.reports.page import check_reports

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 10.6
LINES_HEIGHT_IN = 2.9
ROW_HEIGHT_IN = 0.32
BAR_SHARE = 0.62
WORD_HEIGHT_PT = 10
LEGEND_COLUMNS_MAX = 6
LEGEND_LETTERS = 120
LEGEND_ROW_IN = 0.18
WORD_ROWS_MAX = 3
# What the page's style sheet calls them; matplotlib knows plain colours only.
INK, SOFT, LINE = "#010101", "#020202", "#030303"
VARIABLES = {INK: "var(--ink)", SOFT: "var(--soft)", LINE: "var(--line)"}
PALETTE = (
    "#2f7ed8", "#e8833a", "#2aa198", "#c2498f", "#8a6fdf", "#b58900", "#5a9e3d", "#d9534f",
)  # fmt: skip
"""Colours that differ on white and on black; the first five also for readers with red-green
blindness."""
TONES = {"good": "#2f9e57", "bad": "#d64541", "warn": "#e39a25", "": "#8794a5"}


@dataclass(frozen=True, slots=True)
class Series:
    """Values over x: seconds or UTC datetimes. A value of None leaves a gap."""

    name: str
    xs: Sequence[Any]
    ys: Sequence[float | None]
    kind: Literal["line", "step", "area", "points"] = "line"
    color: str = ""


@dataclass(frozen=True, slots=True)
class MomentMark:
    """A vertical line with a label at one moment."""

    x: Any
    text: str = ""
    tone: Literal["good", "bad", "warn", ""] = "bad"


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded stretch of time."""

    start: Any
    end: Any
    text: str = ""
    tone: Literal["good", "bad", "warn", ""] = "bad"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a lane of `lanes`."""

    start: float
    end: float
    text: str = ""
    tone: Literal["good", "bad", "warn", ""] = ""
    color: str = ""


def lines(
    series: Sequence[Series],
    *,
    x_label: str = "",
    y_label: str = "",
    marks: Sequence[MomentMark] = (),
    bands: Sequence[Band] = (),
    x_range: tuple[Any, Any] | None = None,
    log_y: bool = False,
    height_in: float = LINES_HEIGHT_IN,
) -> str:
    """Returns lines, steps, areas or points over a common x, as SVG."""
    columns = _columns([line.name for line in series])
    legend_rows = -(-len(series) // columns)
    figure, axes = _axes(height_in + LEGEND_ROW_IN * (legend_rows - 1))
    for number, each in enumerate(series):
        color = each.color or PALETTE[number % len(PALETTE)]
        ys = [float("nan") if y is None else y for y in each.ys]
        if each.kind == "points":
            axes.plot(each.xs, ys, "o", ms=3, mew=0, color=color, label=_label_of(number))
        else:
            style = "steps-post" if each.kind == "step" else "default"
            axes.plot(each.xs, ys, lw=1.6, color=color, label=_label_of(number), drawstyle=style)
        if each.kind == "area":
            axes.fill_between(each.xs, ys, color=color, alpha=0.16, lw=0)
    _concise_dates(axes)
    if log_y:
        axes.set_yscale("log")
        axes.minorticks_off()
    elif series:
        axes.set_ylim(bottom=0)
    if x_range is not None:
        axes.set_xlim(*x_range)
    _moments(axes, marks, bands)
    axes.grid(axis="y", color=LINE, lw=0.8)
    _thousands(axes.yaxis, log_y)
    _label(axes, x_label, y_label)
    if len(series) > 1:
        _legend(axes, columns, [line.name for line in series])
    return _svg(figure)


def bars(values: Sequence[tuple[str, float]], *, x_label: str = "", color: str = PALETTE[0]) -> str:
    """Returns a horizontal bar for each (label, value), with its value, as SVG."""
    figure, axes = _axes(_height_of(len(values)))
    drawn = axes.barh(range(len(values)), [each for _, each in values], BAR_SHARE, color=color)
    _names(axes, [name for name, _ in values])
    axes.bar_label(drawn, fmt="{:,.6g}", padding=4, color=SOFT, fontsize=9)
    _rows(axes, x_label)
    return _svg(figure)


def stacked(
    labels: Sequence[str], parts: Mapping[str, Sequence[float]], *, x_label: str = ""
) -> str:
    """Returns horizontal bars, each made of the values of the parts at its place, as SVG."""
    figure, axes = _axes(_height_of(len(labels)) + ROW_HEIGHT_IN)
    lefts = [0.0] * len(labels)
    for number, values in enumerate(parts.values()):
        color = PALETTE[number % len(PALETTE)]
        axes.barh(
            range(len(labels)), values, BAR_SHARE, left=lefts, color=color, label=_label_of(number)
        )
        lefts = [left + value for left, value in zip(lefts, values, strict=True)]
    _names(axes, labels)
    _rows(axes, x_label)
    if parts:
        _legend(axes, _columns(list(parts)), list(parts))
    return _svg(figure)


def lanes(
    rows: Sequence[tuple[str, Sequence[Bar]]],
    *,
    x_label: str = "",
    marks: Sequence[MomentMark] = (),
    bands: Sequence[Band] = (),
    x_range: tuple[float, float] | None = None,
) -> str:
    """Returns a lane for each (label, bars), from the top down, over a common x, as SVG.

    A bar without length is a dot. The text of a bar stands inside it, or to the right of it.
    """
    figure, axes = _axes(_height_of(len(rows)))
    ends = [edge for _, row in rows for bar in row for edge in (bar.start, bar.end)]
    x_range = x_range or ((min(ends), max(ends)) if ends else (0.0, 1.0))
    axes.set_xlim(*x_range)
    a_letter = (x_range[1] - x_range[0]) / (WIDTH_IN * 11)
    for at, (_, row) in enumerate(rows):
        for bar in row:
            color = bar.color or TONES[bar.tone]
            length = bar.end - bar.start
            if length > 0:
                axes.barh(at, length, BAR_SHARE, left=bar.start, color=color)
            else:
                axes.plot([bar.start], [at], "o", ms=5, mew=0, color=color, clip_on=False)
            if bar.text:
                inside = length > a_letter * (len(bar.text) + 1)
                axes.text(
                    bar.start + length / 2 if inside else bar.end + a_letter,
                    at,
                    _word(bar.text),
                    ha="center" if inside else "left",
                    va="center",
                    fontsize=8,
                    color="white" if inside else SOFT,
                )
    _names(axes, [name for name, _ in rows])
    axes.set_ylim(-0.6, max(len(rows), 1) - 0.4)
    _moments(axes, marks, bands)
    _rows(axes, x_label)
    return _svg(figure)


def _axes(height_in: float) -> tuple[Figure, Axes]:
    check_reports()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=SOFT, length=0, labelsize=9)
    axes.set_axisbelow(True)
    return figure, axes


def _height_of(rows: int) -> float:
    return 0.6 + ROW_HEIGHT_IN * max(rows, 1)


def _rows(axes: Axes, x_label: str) -> None:
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(axis="x", color=LINE, lw=0.8)
    _thousands(axes.xaxis, False)
    _label(axes, x_label, "")


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(_word(x_label), color=SOFT, fontsize=9)
    # Above the axis, read without turning the head.
    axes.annotate(
        _word(y_label), (0, 1), xycoords="axes fraction", xytext=(-4, 4),
        textcoords="offset points", ha="right", color=SOFT, fontsize=9,
    )  # fmt: skip


def _columns(names: Sequence[str]) -> int:
    """Returns how many names of a legend fit side by side."""
    longest = max(map(len, names), default=0)
    return max(1, min(LEGEND_COLUMNS_MAX, LEGEND_LETTERS // (longest + 5)))


def _word(text: str) -> str:
    """Escapes a text for matplotlib, in which a pair of `$` would begin a formula, and an invalid
    formula would end the report."""
    return plain(text).replace("$", r"\$")


def _label_of(number: int) -> str:
    """Returns a line's label until the legend names it. A label that begins with `_` would be left
    out."""
    return f"label {number}"


def _names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), [_word(name) for name in names])


def _legend(axes: Axes, columns: int, names: Sequence[str]) -> None:
    made = axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=columns,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
        handlelength=1.2,
    )
    for text, name in zip(made.get_texts(), names, strict=True):
        text.set_text(_word(name))


def _moments(axes: Axes, marks: Sequence[MomentMark], bands: Sequence[Band]) -> None:
    above = axes.get_xaxis_transform()
    for band in bands:
        axes.axvspan(band.start, band.end, color=TONES[band.tone], alpha=0.13, lw=0)
    for mark in marks:
        axes.axvline(mark.x, color=TONES[mark.tone], lw=1.2)
    words = [(band.start, band.text, band.tone) for band in bands if band.text]
    words += [(mark.x, mark.text, mark.tone) for mark in marks if mark.text]
    # Above the axis, in rows: words of moments near each other do not stand on each other.
    for number, (x, text, tone) in enumerate(sorted(words, key=lambda each: each[0])):
        axes.annotate(
            _word(text),
            (x, 1.0),
            xycoords=above,
            xytext=(2, 3 + WORD_HEIGHT_PT * (number % WORD_ROWS_MAX)),
            textcoords="offset points",
            fontsize=8,
            color=TONES[tone],
            annotation_clip=True,
        )


def _thousands(axis: Any, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if not log:
        axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _concise_dates(axes: Axes) -> None:
    from matplotlib import dates

    locator: Any = axes.xaxis.get_major_locator()
    if isinstance(locator, dates.AutoDateLocator):
        formatter: Any = dates.ConciseDateFormatter
        axes.xaxis.set_major_formatter(formatter(locator))


def _svg(figure: Figure) -> str:
    from matplotlib import rc_context

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "raylay", "font.family": "sans-serif"}
    with rc_context(settings), io.StringIO() as out:
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        drawn = out.getvalue()
    for color, variable in VARIABLES.items():
        drawn = drawn.replace(color, variable)
    # The page's own type, in place of the list of fonts that matplotlib would try.
    drawn = drawn.replace("'DejaVu Sans', ", "system-ui, 'DejaVu Sans', ")
    return drawn[drawn.index("<svg") :]
