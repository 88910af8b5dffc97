"""Pages of programs that serve a study's results: a program is started, and its page is opened."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser.chromium import DRIVER
from tests.cli.command import ran
from tuner.http import HttpError, ReadLimits, fetch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

READY_S = 180.0


def simulated_study(folder: Path, name: str, *words: str) -> None:
    ran(folder, "optimize", "--engine", "simulated", "--plain", "--study", name, *words)


@contextmanager
def running(
    command: Sequence[str], folder: Path, url: str, environment: dict[str, str] | None = None
) -> Iterator[Path]:
    """Run a program until the block ends, and wait until a page of it answers; yield the file with its output."""
    output = folder / "server.out"
    with output.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, env=environment)
    try:
        while not _answers(url):
            assert process.poll() is None, output.read_text()
            time.sleep(0.1)
        yield output
    finally:
        process.terminate()
        process.wait(READY_S)


def _answers(url: str) -> bool:
    try:
        fetch(url, ReadLimits(2.0))
    except HttpError:
        return False
    return True


@contextmanager
def watched_page(opened: Browser, base: str, width: int = 1600, height: int = 900) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page and a list of its problems: errors of the console and of scripts, and requests that leave `base`."""
    context = opened.new_context(viewport={"width": width, "height": height})
    problems: list[str] = []
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda m: problems.append(f"{m.text} {m.location['url']}") if m.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    inside = (base, "data:", "blob:")
    page.on("request", lambda r: problems.append(r.url) if not r.url.startswith(inside) else None)
    try:
        yield page, problems
    finally:
        context.close()
        problems[:] = [each for each in problems if DRIVER not in each]
