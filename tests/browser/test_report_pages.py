"""Reports in a browser: every chart is drawn, on a screen and a phone, light and dark, without an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import PAPER, look, print_page
from tests.cli.command import ran
from tests.cli.conftest import NoMlflow, short_traffic
from tests.recorded import MIX, SEVEN_B, recorded_study
from tuner.use_cases import optimize as optimize_run
from tuner.use_cases.report.page import page_of, page_of_several, write_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STUDY = ("optimize", "--engine", "simulated", "--plain", "--trials", "15")
SIMULATED = {"loop": ("--prompts", "40", "--users", "20"), "traffic": ("--workload", "traffic.yaml")}
SEVERAL = "several studies"
RECORDED = {"h200-7b.csv": SEVEN_B, "h200-mix-reduced.csv": MIX}


LEAST = {**dict.fromkeys(SIMULATED, 8), **dict.fromkeys(RECORDED, 4), SEVERAL: 1}
"""The least number of charts of each page."""

WINDOWS = ((1280, "light"), (390, "dark"))
OTHER_WINDOWS = ((1280, "dark"), (390, "light"))
"""For one page, because each takes seconds and all pages have the same style sheet."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    short_traffic(folder / "traffic.yaml")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize_run, "MlflowFollower", NoMlflow)
        for name, words in SIMULATED.items():
            ran(folder, *STUDY, *words, "--study", name)
            found[name] = folder / "tuner_study" / "artifacts" / name / "report.html"
    for file, premise in RECORDED.items():
        found[file] = write_page(page_of(recorded_study(file, premise)), folder / f"{file}.html")
    several = page_of_several([recorded_study(file, premise) for file, premise in RECORDED.items()])
    found[SEVERAL] = write_page(several, folder / "several.html")
    return found


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [*((name, *window) for name in LEAST for window in WINDOWS), *(("traffic", *window) for window in OTHER_WINDOWS)],
)
def test_every_chart_is_drawn(opened: Browser, pages: dict[str, Path], name: str, width: int, scheme: str) -> None:
    seen = look(opened, pages[name], width, scheme)
    assert seen.problems == []
    assert seen.charts == seen.places
    assert seen.places >= LEAST[name]
    assert seen.overflow == 0


@pytest.mark.parametrize("name", [*LEAST])
def test_a_printed_page_cuts_nothing(opened: Browser, pages: dict[str, Path], name: str) -> None:
    printed = print_page(opened, pages[name])
    assert printed.widest <= PAPER
    assert printed.wide_tables == []
    assert printed.colours in ([], ["rgb(0, 0, 0)"])  # a dark window prints dark texts
    assert printed.after > PAPER


def test_texts_on_faint_cells_have_the_colour_of_the_page(opened: Browser, pages: dict[str, Path]) -> None:
    """In a dark window, Plotly's own choice for a transparent cell is dark. Some trials of this study failed."""
    context = opened.new_context(viewport={"width": 1280, "height": 900}, color_scheme="dark")
    page = context.new_page()
    page.goto(pages["h200-7b.csv"].as_uri())
    labels = page.locator(".heatmap-label text")
    labels.first.wait_for(state="attached")
    found = page.evaluate(
        "[...document.querySelectorAll('.chart')].filter((each) => each.data[0].meta === 'page text')"
        ".flatMap((each) => [...each.querySelectorAll('.heatmap-label text')].map((text) => text.style.fill))"
    )
    context.close()
    assert {*found} == {"rgb(230, 233, 237)"}  # --text of the style sheet
