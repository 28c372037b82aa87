"""Reports: the page is whole, nothing in it is taken for markup, charts are well-formed SVG."""

from __future__ import annotations

import datetime
import re
from xml.etree import ElementTree

import pytest

from raylay.services.reports import Page, charts
from raylay.services.reports.page import ROWS_OPEN_MAX, Cell, show


def texts(svg: str) -> list[str]:
    """The words in a chart."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter() if element.text]


def test_a_page_has_its_parts_in_order() -> None:
    page = Page("Audit", "fabric flights")
    page.verdict(False, "3 messages are lost.")
    page.figures([("messages", 336_776, "at six instances")])
    page.table("What is missing", ["instance", "messages"], [["Chicago-1", 3]])
    html = page.html()
    found = [
        html.index(text)
        for text in ("Audit</h1>", "Failed.", "3 messages are lost", "336,776", "Chicago-1")
    ]
    assert found == sorted(found)


def test_what_users_named_is_not_markup() -> None:
    page = Page("<script>alert(1)</script>")
    page.table("Topics", ["topic"], [["<b>&</b>"], [Cell("<i>", "bad")]])
    html = page.html()
    assert "<script>" not in html and "<b>&" not in html and "<i>" not in html
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in html


def test_commands_in_sentences_and_notes_are_code() -> None:
    page = Page("Audit", footer="`a`")
    page.verdict(False, "see `raylay <status>`")
    page.text("", "one ` alone", "`a` and `b`")
    page.table("Topics", ["topic"], [["`t`"]], "by `raylay journal grep`")
    html = page.html()
    assert "see <code>raylay &lt;status&gt;</code>" in html
    assert "one ` alone" in html and "<code>a</code> and <code>b</code>" in html
    assert "by <code>raylay journal grep</code>" in html
    assert ">`t`</td>" in html, "a topic's name is shown as it is"


def test_a_head_is_not_wrapped() -> None:
    (rule,) = re.findall(r"\nth \{([^}]*)\}", Page("Audit").html())
    assert "white-space: nowrap" in rule


def test_a_page_loads_nothing_from_elsewhere() -> None:
    page = Page("Drill")
    page.chart("Rates", charts.lines([charts.Series("a", [0, 1], [1, 2])]))
    html = page.html()
    assert "<link" not in html and "src=" not in html and "@import" not in html


def test_long_tables_are_folded() -> None:
    page = Page("Audit")
    page.table("Many", ["n"], [[number] for number in range(ROWS_OPEN_MAX + 1)])
    page.table("Few", ["n"], [[1]])
    assert page.html().count("<details>") == 1


def test_a_column_with_a_number_is_aligned_to_the_right_in_each_row() -> None:
    page = Page("Audit")
    page.table("Who", ["topic", "a"], [["t", Cell(3, "good")], ["u", Cell("none: cut off")]])
    html = page.html()
    assert '<th class="number">a</th>' in html and "<th>topic</th>" in html
    assert '<td class="good number">3</td>' in html
    assert '<td class="number">none: cut off</td>' in html


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234567, "1,234,567"), (0.12345, "0.123"), (12345.6, "12,346"), (None, ""), (True, "yes")],
)
def test_values_are_shown_as_a_reader_wants_them(value: object, shown: str) -> None:
    assert show(value) == shown


def test_lines_have_their_names_marks_and_bands() -> None:
    drawn = charts.lines(
        [
            charts.Series("published", [0, 1, 2], [1.0, None, 3.0], "area"),
            charts.Series("delivered", [0, 1, 2], [1.0, 2.0, 3.0], "step"),
            charts.Series("lost", [1], [2.0], "points"),
        ],
        x_label="s",
        y_label="messages/s",
        marks=[charts.MomentMark(1, "SIGKILL")],
        bands=[charts.Band(1, 2, "downgraded", "warn")],
    )
    found = texts(drawn)
    for word in ("published", "delivered", "lost", "SIGKILL", "downgraded", "messages/s", "s"):
        assert word in found
    assert "var(--ink)" in drawn and charts.INK not in drawn


def test_lines_over_dates_and_decades() -> None:
    start = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)
    times = [start + datetime.timedelta(seconds=number) for number in range(60)]
    drawn = charts.lines(
        [charts.Series("p99", times, [10.0**number for number in range(60)])], log_y=True
    )
    assert any("2026-Jan-02" in text for text in texts(drawn))


def test_bars_say_their_values() -> None:
    assert "336,776" in texts(charts.bars([("Chicago-1", 336_776), ("London-1", 0)]))
    found = texts(charts.stacked(["Chicago-1"], {"EWR": [1], "JFK": [2]}, x_label="messages"))
    assert {"Chicago-1", "EWR", "JFK", "messages"} <= set(found)


def test_lanes_draw_stretches_and_moments() -> None:
    drawn = charts.lanes(
        [
            ("Chicago-1", [charts.Bar(0, 5, "ready", "good"), charts.Bar(6, 6, "failover", "bad")]),
            ("London-1", []),
        ],
        marks=[charts.MomentMark(5, "kill")],
    )
    assert {"Chicago-1", "London-1", "ready", "failover", "kill"} <= set(texts(drawn))


def test_charts_of_nothing_are_drawn() -> None:
    for drawn in (charts.lines([]), charts.bars([]), charts.stacked([], {}), charts.lanes([])):
        assert drawn.startswith("<svg")


def test_a_chart_is_drawn_the_same_twice() -> None:
    series = [charts.Series("a", [0, 1], [1, 2])]
    assert charts.lines(series) == charts.lines(series)


NAMES = ("$\\frac$", "$x$ and $y$", "a\\$b", "_hidden", "same", "5$", "\\")


def test_labels_are_no_formulas() -> None:
    """A pair of `$` in a topic was read as a formula, and one that is none ended the report."""
    for drawn in (
        charts.lines(
            [charts.Series(name, [0, 1], [1, 2]) for name in NAMES],
            x_label=NAMES[0],
            y_label=NAMES[1],
        ),
        charts.lines(
            [],
            marks=[charts.MomentMark(at, name) for at, name in enumerate(NAMES)],
            bands=[charts.Band(1, 2, "$\\frac$ band")],
        ),
        charts.bars([(name, 1) for name in NAMES], x_label=NAMES[0]),
        charts.stacked(NAMES, {name: [1] * len(NAMES) for name in NAMES}),
        charts.lanes([(name, [charts.Bar(0, 5, name)]) for name in NAMES]),
    ):
        assert set(NAMES) <= set(texts(drawn))


def test_equal_names_have_a_bar_each() -> None:
    assert texts(charts.bars([("a", 1), ("a", 2)])).count("a") == 2


def test_nothing_in_a_report_turns_a_line_round() -> None:
    hostile = "a\x1b[2J\u202eb\x9b"
    page = Page(hostile, hostile, hostile)
    page.verdict(False, hostile)
    page.figures([(hostile, hostile, hostile)], hostile)
    page.text(hostile, hostile)
    page.table(hostile, [hostile], [[hostile], [Cell(hostile, "bad")]], hostile)
    page.chart(hostile, charts.bars([(hostile, 1)], x_label=hostile), hostile)
    assert page.html().replace("\n", "").isprintable()
    assert "a\\x1b[2J\\u202eb\\x9b" in page.html()
