"""A person at the service's page: a window of the browser, and what is wrong on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.chromium import DRIVER

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SERIOUS = ("serious", "critical")
LONG_MS = 240_000
"""How long a study may take on a busy machine."""

RUN_AXE = "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)"


@dataclass
class Walk:
    """A window on the page.

    Attributes:
        page: the window.
        address: of the service.
        pictures: folder of the pictures that it takes.
        problems: errors and warnings of the console, errors of scripts, requests to other hosts, and faults that
            `check` found.
    """

    page: Page
    address: str
    pictures: Path
    problems: list[str] = field(default_factory=list)

    def listen(self, context: BrowserContext) -> None:
        """Write down what goes wrong in a context, in windows that it opens, too."""
        context.on("console", lambda m: self._heard(m.text) if m.type in ("error", "warning") else None)
        context.on("weberror", lambda e: self.problems.append(str(e.error)))
        context.on("request", lambda r: None if self._is_own(r.url) else self.problems.append(r.url))

    def _heard(self, text: str) -> None:
        if DRIVER not in text:
            self.problems.append(text)

    def _is_own(self, url: str) -> bool:
        return url.startswith((f"{self.address}/", f"blob:{self.address}/", "data:"))

    def go(self, route: str) -> None:
        """Open a view by its address."""
        self.page.goto(f"{self.address}/#/{route}")

    def log_in(self, token: str) -> None:
        self.page.fill("input[name=token]", token)
        self.page.click("button.primary")
        self.page.wait_for_selector("h1:text-is('Studies')")

    def see(self, text: str, within: str = "main") -> None:
        """Wait until a text is visible."""
        self.page.locator(within).get_by_text(text).first.wait_for(timeout=LONG_MS)

    def state(self, *states: str) -> None:
        """Wait until the study on the page has one of the states."""
        badges = ", ".join(f".state-line .state-{each}" for each in states)
        self.page.locator(badges).first.wait_for(timeout=LONG_MS)

    def check(self, view: str) -> None:
        """Write down faults of a view: serious ones of accessibility, and a page that is too wide."""
        page = self.page
        page.locator(".chart:not(:has(.main-svg))").first.wait_for(state="detached")
        page.screenshot(path=self.pictures / f"{view}.png", full_page=True)
        overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if overflow:
            self.problems.append(f"{view} is {overflow} px too wide")
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        for each in page.evaluate(RUN_AXE):
            if each["impact"] in SERIOUS:
                nodes = "; ".join(node["html"][:160] for node in each["nodes"][:3])
                self.problems.append(f"{view}: {each['id']}: {each['help']}: {nodes}")


@contextmanager
def walk(opened: Browser, address: str, width: int, scheme: str, pictures: Path) -> Iterator[Walk]:
    """Open the page in a window of `width` pixels, with the colour scheme `light` or `dark`."""
    context = opened.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
        accept_downloads=True,
    )
    pictures.mkdir(parents=True, exist_ok=True)
    found = Walk(context.new_page(), address, pictures)
    found.listen(context)
    found.page.goto(address)
    try:
        yield found
    finally:
        context.close()
