#!/usr/bin/env python3
"""Run a command in a terminal and draw what it prints as an SVG.

    python3 scripts/record_terminal.py OUT.svg [--head N] [--from TEXT --lines N] -- COMMAND …

Drawn are the first lines, and those that begin with the first one that has TEXT; `…` stands for what is left out. The
picture names no font of another site, so that a page shows it without the network. The one in README.md:

    python3 scripts/record_terminal.py docs/images/first-study.svg --head 9 --from 'trial 32 is' --lines 14 -- \
        tuner optimize --preset qwen2.5-0.5b-t4-greedy --trials 60 --plain
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 100
_FONT = re.compile(r"@font-face \{.*?\}\n", re.DOTALL)


def main() -> None:
    """Record the command of the command line; exit with its code."""
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("out", type=Path)
    reader.add_argument("--head", type=int, default=10, help="lines drawn of the beginning")
    reader.add_argument("--from", dest="text", default="", help="text of the first line drawn after `…`")
    reader.add_argument("--lines", type=int, default=30, help="lines drawn from there on")
    reader.add_argument("command", nargs="+")
    asked = reader.parse_args()
    code, lines = recorded(asked.command)
    if code == 0:
        asked.out.write_text(
            picture(asked.command, shortened(lines, asked.head, asked.text, asked.lines)), encoding="utf-8"
        )
    sys.exit(code)


def recorded(command: list[str]) -> tuple[int, list[str]]:
    """Run a command in a pseudo-terminal; return its exit code and its lines, with their escape sequences."""
    os.environ["COLUMNS"] = str(WIDTH)
    parts: list[bytes] = []

    def read(file: int) -> bytes:
        parts.append(os.read(file, 1 << 16))
        return parts[-1]

    status = pty.spawn(command, read)
    text = b"".join(parts).decode(errors="replace").replace("\r\n", "\n")
    return os.waitstatus_to_exitcode(status), [line.rpartition("\r")[2] for line in text.splitlines()]


def shortened(lines: list[str], head: int, text: str, count: int) -> list[str]:
    """Return the first `head` lines, and `count` from the first later line with `text`; `…` for what is left out.

    Raises:
        SystemExit: if no later line has the text.
    """
    start = next((place for place in range(head, len(lines)) if text in lines[place]), None)
    if start is None:
        raise SystemExit(f"no line after the first {head} has {text!r}")
    shown = [*lines[:head], *(["…"] if start > head else []), *lines[start : start + count]]
    return [*shown, "…"] if start + count < len(lines) else shown


def picture(command: list[str], lines: list[str]) -> str:
    """Return an SVG of a terminal with a command and its lines."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(Text(f"$ {shlex.join(command)}", style="bold"))
        for line in lines:
            console.print(Text.from_ansi(line), no_wrap=False)
    return _FONT.sub("", console.export_svg(title=command[0]))


if __name__ == "__main__":
    main()
