"""What the pages show: commands and their output, read from fenced blocks.

A block marked `bash` holds commands. A block marked `text` that follows it directly holds the output of its last
command; if prose stands between them, that of the last `tuner` command. A line that is only `…` stands for lines that
are left out.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
ENDS = {"|", ">", ">>", "&&", ";", "2>"}
LEFT_OUT = "…"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SECONDS = re.compile(r"\b(?:\d+ h )?(?:\d+ min )?\d+(?:\.\d+)? s\b|\b\d+ min\b")


@dataclass(frozen=True)
class Step:
    """One command line of a page, and the lines of its output that the page shows."""

    page: str
    line: str
    shown: tuple[str, ...] = ()


def steps_of(page: Path) -> list[Step]:
    """Return the command lines of a page in order, each with its output."""
    found: list[Step] = []
    text = page.read_text(encoding="utf-8")
    end = -1
    for block in _BLOCK.finditer(text):
        kind, body = block.groups()
        if kind in ("bash", "console", "sh"):
            lines = [line.removeprefix("$ ") for line in body.replace("\\\n", " ").splitlines()]
            found += [Step(page.name, line) for line in lines if line.strip() and not line.startswith("#")]
            end = block.end()
        elif kind == "text" and found:
            place = _last_tuner_step(found) if text[end : block.start()].strip() else len(found) - 1
            if place is not None and not found[place].shown:
                found[place] = Step(page.name, found[place].line, tuple(body.splitlines()))
    return found


def _last_tuner_step(steps: list[Step]) -> int | None:
    """Return the place of the last step that runs `tuner`; None if none does."""
    runs = [any(tuner_words(words) is not None for words in commands_in(step.line)) for step in steps]
    return max((place for place, is_tuner in enumerate(runs) if is_tuner), default=None)


def python_of(page: Path) -> list[str]:
    """Return the Python programs of a page's fenced blocks."""
    return [body for kind, body in _BLOCK.findall(page.read_text(encoding="utf-8")) if kind == "python"]


def commands_in(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line, split at `&&`, `;` and pipes."""
    words = shlex.split(line, comments=True)
    while words:
        end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
        one, words = words[:end], words[end + 1 :]
        if one:
            yield one


def tuner_words(words: list[str]) -> list[str] | None:
    """Return the words after `tuner`, also of `uv run … tuner …`; None for another program."""
    if words[0].endswith("uv") and words[1:2] == ["run"]:
        words = words[4:] if words[2:3] == ["--extra"] else words[2:]
    return words[1:] if words[:1] == ["tuner"] else None


def without_durations(line: str) -> str:
    """Return a line with every duration replaced, and blanks at its end removed."""
    return _SECONDS.sub("<duration>", line).rstrip()


def missing_lines(shown: tuple[str, ...], output: str) -> list[str]:
    """Return the shown lines that the output lacks, in order; durations may differ.

    Without a line `…` between them, shown lines must follow each other directly.
    """
    result = [without_durations(line) for line in output.splitlines()]
    missing, place, gap = [], 0, True
    for line in map(without_durations, shown):
        if line.strip() == LEFT_OUT:
            gap = True
            continue
        window = result[place:] if gap else result[place : place + 1]
        if line in window:
            place, gap = place + window.index(line) + 1, False
        else:
            missing.append(line)
    return missing
