"""Generate what docs lacks for the site: a list of the reports, the files that pages link to, and `llms.txt`.

MkDocs calls these functions (`hooks` of mkdocs.yml).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
REPORTS = "reports.md"

_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
_titles: dict[str, tuple[str, str]] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the list of reports, the newest one first."""
    rows = [f"- [{_title(path)}](reports/{path.name}), {path.name[:10]}" for path in _reports()]
    text = "\n".join(["# Reports", "", "What was measured, by date. Reports are not changed later.", "", *rows, ""])
    files.append(File.generated(config, REPORTS, content=text))
    return files


def _reports() -> list[Path]:
    return sorted((ROOT / "docs" / "reports").glob("*.md"), reverse=True)


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Copy files outside docs that the page links to, and link to the copies; make links to folders plain text."""
    here = posixpath.dirname(page.file.src_uri)

    def linked(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        name = posixpath.normpath(posixpath.join("docs", here, target))
        if name == "docs/reports":
            return f"[{text}]({posixpath.relpath(REPORTS, here or '.')})"
        source = ROOT / name
        if name.startswith("docs/") or not source.exists():
            return match[0]
        if source.is_dir():
            return text
        copy = f"repository/{name}.txt"
        if files.get_file_from_path(copy) is None:
            files.append(File.generated(config, copy, content=source.read_text(encoding="utf-8")))
        return f"[{text}]({posixpath.relpath(copy, here or '.')})"

    return _LINK.sub(linked, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remember each page's title and first sentence for `llms.txt`."""
    first = re.search(r"<p>(.*?)</p>", html, re.DOTALL)
    sentence = re.split(r"(?<=[.:])\s", re.sub(r"<[^>]+>|\n", " ", first[1] if first else "").strip())[0]
    _titles[page.file.src_uri] = (str(page.title), " ".join(sentence.split()))
    return html


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the navigation for `llms.txt`."""
    config.extra["nav"] = nav
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`: the navigation as a list of links with a sentence each, for language models."""
    nav: Any = config.extra["nav"]
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for item in nav.items:
        pages = item.children if item.is_section else [item]
        lines += ["", f"## {item.title}", ""]
        for page in pages:
            title, sentence = _titles[page.file.src_uri]
            lines.append(f"- [{title}]({page.file.dest_uri}): {sentence}")
    Path(config.site_dir, "llms.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
