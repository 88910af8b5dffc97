"""The HTML of a report."""

from __future__ import annotations

import json
import re

from dashboards.plots.style import figure_json, new_figure
from dashboards.report.page import Command, Figure, Page, Section, Table, Tile, render
from tuner.results.text import grid

EVIL = "</script><script>alert(1)</script> & \"x\" 'y'"


def page(*parts: Figure | Table | Command | str, simulated: bool = False) -> Page:
    return Page(EVIL, "Keep the defaults.", simulated, [Tile("score", "1.2", EVIL)], [Section("Result", parts, EVIL)])


def test_no_text_becomes_markup() -> None:
    table = grid("metric", "value", left=("metric",))
    table.add(EVIL, "1")
    figure = new_figure()
    figure.add_scatter(x=[1], y=[1], name=EVIL)
    text = render(page(Table(EVIL, table), Command(EVIL, EVIL), Figure(EVIL, figure, EVIL), EVIL))
    assert "alert(1)</script>" not in text
    assert EVIL not in text


def test_a_figure_is_the_same_after_the_escape() -> None:
    figure = new_figure()
    figure.add_scatter(x=[1, 2], y=[3.5, None], name=EVIL)
    text = figure_json(figure)
    assert not re.search(r"[<>&]", text)
    [trace] = json.loads(text)["data"]
    assert (trace["name"], trace["x"], trace["y"]) == (EVIL, [1, 2], [3.5, None])


def test_plotly_is_embedded_once_and_only_with_a_figure() -> None:
    figure = new_figure()
    figure.add_scatter(x=[1], y=[1])
    with_two = render(page(Figure("one", figure), Figure("two", figure)))
    assert with_two.count('id="chart-') == 2
    assert 4_000_000 < len(with_two.encode()) < 6_000_000
    assert len(render(page("no figure"))) < 20_000


def test_a_simulated_page_says_so_on_top() -> None:
    assert "Simulated, not measured" in render(page(simulated=True))
    assert "Simulated, not measured" not in render(page())


def test_tables_mark_faint_rows_and_numbers() -> None:
    table = grid("flag", "effect", left=("flag",))
    table.add("a=1", "×1.20")
    table.add("b=2", "×1.00", faint=True)
    text = render(page(Table("flags", table)))
    assert len(re.findall(r'<tr class="faint">', text)) == 1
    assert '<td class="right">×1.20</td>' in text
    assert "<td>a=1</td>" in text


def test_headings_break_after_underscores_and_are_escaped() -> None:
    table = grid("p99_ttft_ms", "<b>", left=())
    text = render(page(Table("t", table)))
    assert "p99_<wbr>ttft_<wbr>ms</th>" in text
    assert "&lt;b&gt;</th>" in text
