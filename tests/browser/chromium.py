"""A headless Chromium, which shows a page and tells what went wrong in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
MISSING = f"no {' or '.join(PROGRAMS)} on the PATH: apt-get install chromium"
DRIVER = "GL Driver Message"
"""In warnings of Chromium about its own drawing without a GPU."""


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


def program() -> str:
    """Return the browser's path. Without one, the test fails in CI and is skipped elsewhere."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is not None:
        return found
    if os.environ.get("CI"):
        pytest.fail(MISSING, pytrace=False)
    pytest.skip(MISSING)


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program(), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


def look(opened: Browser, file: Path, width: int, scheme: str, picture: Path | None = None) -> Seen:
    """Open a file in a window of `width` pixels, with the colour scheme `light` or `dark`."""
    context = opened.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    problems: list[str] = []
    page = context.new_page()
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    page.goto(file.as_uri())
    page.wait_for_function("[...document.querySelectorAll('.chart')].every((each) => each.querySelector('.main-svg'))")
    charts = page.evaluate("document.querySelectorAll('.chart .main-svg:first-child').length")
    places = page.evaluate("document.querySelectorAll('.chart').length")
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if picture is not None:
        page.screenshot(path=picture, full_page=True)
    context.close()
    return Seen([each for each in problems if DRIVER not in each], charts, places, overflow)
