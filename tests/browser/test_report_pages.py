"""Reports in a browser: every chart is drawn, on a screen and a phone, light and dark, without an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import PAPER, Printed, Seen, drawn, look, print_page, seen
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
SOME_FAILED = "h200-7b.csv"
RECORDED = {SOME_FAILED: SEVEN_B, "h200-mix-reduced.csv": MIX}


LEAST = {**dict.fromkeys(SIMULATED, 8), **dict.fromkeys(RECORDED, 4), SEVERAL: 1}
"""The least number of charts of each page."""

WIDE_AND_DARK = (1280, "dark")
WINDOWS = (WIDE_AND_DARK, (390, "light"))
OTHER_WINDOWS = ((1280, "light"), (390, "dark"))
"""For one page, because each takes seconds and all pages have the same style sheet."""


@dataclass(frozen=True)
class Dark:
    """A page in a wide dark window, printed from there, and the colours of its texts on faint cells."""

    seen: Seen
    printed: Printed
    faint: frozenset[str]


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


@pytest.fixture(scope="module")
def dark(opened: Browser, pages: dict[str, Path]) -> Callable[[str], Dark]:
    """Opens a page once for all tests of the wide dark window, because drawing its charts takes seconds."""

    @cache
    def open_page(name: str) -> Dark:
        with drawn(opened, pages[name], *WIDE_AND_DARK) as (page, problems):
            on_screen = seen(page, problems)
            if name == SOME_FAILED:
                page.locator(".heatmap-label text").first.wait_for(state="attached")
            faint = page.evaluate(
                "[...document.querySelectorAll('.chart')].filter((each) => each.data[0].meta === 'page text')"
                ".flatMap((each) => [...each.querySelectorAll('.heatmap-label text')].map((text) => text.style.fill))"
            )
            return Dark(on_screen, print_page(page), frozenset(faint))

    return open_page


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [*((name, *window) for name in LEAST for window in WINDOWS), *(("traffic", *window) for window in OTHER_WINDOWS)],
)
def test_every_chart_is_drawn(
    opened: Browser, pages: dict[str, Path], dark: Callable[[str], Dark], name: str, width: int, scheme: str
) -> None:
    found = dark(name).seen if (width, scheme) == WIDE_AND_DARK else look(opened, pages[name], width, scheme)
    assert found.problems == []
    assert found.charts == found.places
    assert found.places >= LEAST[name]
    assert found.overflow == 0


@pytest.mark.parametrize("name", [*LEAST])
def test_a_printed_page_cuts_nothing(dark: Callable[[str], Dark], name: str) -> None:
    printed = dark(name).printed
    assert printed.widest <= PAPER
    assert printed.wide_tables == []
    assert printed.colours in ([], ["rgb(0, 0, 0)"])  # a dark window prints dark texts
    assert printed.after > PAPER


def test_texts_on_faint_cells_have_the_colour_of_the_page(dark: Callable[[str], Dark]) -> None:
    """In a dark window, Plotly's own choice for a transparent cell is dark. Some trials of this study failed."""
    assert dark(SOME_FAILED).faint == {"rgb(230, 233, 237)"}  # --text of the style sheet
