"""The page of a sizing in a browser: both charts are drawn, on a screen and a phone, without an error."""

from pathlib import Path

import pytest

from tests.browser.chromium import browser, look
from tests.unit.use_cases.size.test_page import SIZING
from tuner.use_cases.size.html import html


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_is_drawn_without_an_error(tmp_path: Path, width: int, scheme: str) -> None:
    file = tmp_path / "size.html"
    file.write_text(html(SIZING), encoding="utf-8")
    with browser() as opened:
        seen = look(opened, file, width, scheme, tmp_path / f"size-{width}.png")
    assert seen.problems == []
    assert seen.charts == seen.places == 2
    assert seen.overflow <= 0
