"""The files of the web page, and Plotly's script from its own package."""

from __future__ import annotations

import functools
import gzip
import html
import re
from importlib.metadata import version
from pathlib import Path, PurePosixPath

from fastapi import APIRouter, Request, Response

from dashboards.plots.style import plotly_script
from tuner import __version__
from tuner.service.http.context import Context
from tuner.service.http.problems import not_found

router = APIRouter(include_in_schema=False)

PAGES = Path(__file__).parents[2] / "pages"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER = "public, max-age=31536000, immutable"
"""For an address that has the version of its content."""

AGAIN = "no-cache"
"""Browsers keep the file, and ask each time whether it has changed."""

OWN_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)\)\{var \w+=document\.createElement\("style"\)')
"""Where Plotly's script adds a library's style sheet, unless there is an element with this id already."""


@functools.cache
def contents() -> dict[str, bytes]:
    """Return the page's files by their paths below `pages`."""
    found = (each for each in PAGES.rglob("*") if each.suffix in TYPES)
    return {each.relative_to(PAGES).as_posix(): each.read_bytes() for each in found}


@functools.cache
def plotly() -> tuple[str, bytes, bytes]:
    """Return the version, the script, and the script compressed by gzip."""
    script = plotly_script().encode()
    return version("plotly"), script, gzip.compress(script, 6)


@functools.cache
def first_page(provider: str) -> bytes:
    """Return the page with the address of Plotly's script, which the page loads when it draws the first chart.

    `provider` is the name of the provider at which people sign in; empty: people log in with tokens alone.

    The style sheets that the script would add are those of its maps, which no chart here has. Elements with their ids
    keep it from adding them, which the content security policy would refuse.
    """
    version, script, _ = plotly()
    styles = "".join(f'<template id="{html.escape(id)}"></template>' for id in OWN_STYLE.findall(script.decode()))
    text = contents()["index.html"].decode()
    text = text.replace("{version}", html.escape(__version__)).replace("{plotly}", f"/page/plotly-{version}.js")
    return text.replace("{provider}", html.escape(provider)).replace("{styles}", styles).encode()


@router.get("/")
def page(context: Context) -> Response:
    provider = "" if context.provider is None else context.provider.host
    return Response(first_page(provider), media_type=TYPES[".html"], headers={"Cache-Control": AGAIN})


@router.get("/page/{path:path}")
def file(path: str, request: Request) -> Response:
    """Return a file of the page."""
    version, script, compressed = plotly() if path.startswith("plotly-") else ("", b"", b"")
    if version and path == f"plotly-{version}.js":
        headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            script, headers["Content-Encoding"] = compressed, "gzip"
        return Response(script, media_type=TYPES[".js"], headers=headers)
    content = contents().get(path)
    if content is None:
        raise not_found("file", path)
    return Response(content, media_type=TYPES[PurePosixPath(path).suffix], headers={"Cache-Control": AGAIN})
