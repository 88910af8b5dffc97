"""A headless Chromium, which shows a page and tells what went wrong in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs import needed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DRIVER = "GL Driver Message"
"""In warnings of Chromium about its own drawing without a GPU."""

PATIENCE_MS = 240_000
"""How long a page may take to be drawn on a busy machine."""

PICTURES = os.environ.get("TUNER_PICTURES")
"""A folder for pictures of the pages, for a look and for the documents."""


@dataclass(frozen=True)
class Seen:
    """A page as the browser shows it.

    Attributes:
        problems: errors and warnings of the console, errors of scripts, and requests that leave the file.
        charts: number of charts that are drawn.
        places: number of places for charts.
        overflow: pixels by which the page is wider than the window.
    """

    problems: Sequence[str]
    charts: int
    places: int
    overflow: int


@contextmanager
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=needed("chromium"), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


def keep(page: Page, name: str) -> None:
    if PICTURES is not None:
        page.screenshot(path=Path(PICTURES) / name)


@contextmanager
def drawn(opened: Browser, file: Path, width: int, scheme: str) -> Iterator[tuple[Page, list[str]]]:
    """Open a file in a window of `width` pixels, with the colour scheme `light` or `dark`.

    Yields:
        The page, whose charts are drawn, and the list of its problems, which grows.
    """
    context = opened.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto(file.as_uri())
    page.wait_for_function("[...document.querySelectorAll('.chart')].every((each) => each.querySelector('.main-svg'))")
    try:
        yield page, problems
    finally:
        context.close()


def seen(page: Page, problems: Sequence[str]) -> Seen:
    """Return how a page whose charts are drawn looks."""
    charts = page.evaluate("document.querySelectorAll('.chart .main-svg:first-child').length")
    places = page.evaluate("document.querySelectorAll('.chart').length")
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return Seen([each for each in problems if DRIVER not in each], charts, places, overflow)


def look(opened: Browser, file: Path, width: int, scheme: str, picture: Path | None = None) -> Seen:
    """Open a file in a window of `width` pixels, with the colour scheme `light` or `dark`, and look at it."""
    with drawn(opened, file, width, scheme) as (page, problems):
        found = seen(page, problems)
        if picture is not None:
            page.screenshot(path=picture, full_page=True)
    return found


PAPER = 718
"""Pixels of an A4 page between margins of 10 mm."""


@dataclass(frozen=True)
class Printed:
    """A page as it is printed.

    Attributes:
        widest: pixels of the widest chart.
        wide_tables: first headings of tables that the paper cuts.
        colours: of the texts on faint cells.
        after: pixels of the widest chart on the screen afterwards.
    """

    widest: float
    wide_tables: Sequence[str]
    colours: Sequence[str]
    after: float


def print_page(page: Page) -> Printed:
    """Lay a page out as Chromium prints it from its window, and return to the screen."""
    width = page.evaluate("innerWidth")
    widest = (
        "Math.max(...[...document.querySelectorAll('.chart .main-svg')].map((e) => e.getBoundingClientRect().width))"
    )
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    charts = page.evaluate(widest)
    tables = page.evaluate(
        "[...document.querySelectorAll('table')].filter((each) => each.getBoundingClientRect().right > innerWidth)"
        ".map((each) => each.querySelector('th').textContent)"
    )
    colours = page.evaluate(
        "[...document.querySelectorAll('.chart')].filter((each) => each.data[0].meta)"
        ".flatMap((each) => [...each.querySelectorAll('.heatmap-label text')].map((text) => text.style.fill))"
    )
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": width, "height": 900})
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    after = page.evaluate(widest)
    return Printed(charts, tables, sorted(set(colours)), after)
