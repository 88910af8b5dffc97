"""Shared parts of the benchmarks' command lines: parsers made of docstrings, JSON files, and the end by SIGTERM."""

import argparse
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def documented_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows a module's docstring: its first line, the options, then the rest."""
    first, _, rest = (doc or "").partition("\n")
    return argparse.ArgumentParser(
        description=first, epilog=rest.strip(), formatter_class=argparse.RawDescriptionHelpFormatter
    )


def environment_variables(pairs: Sequence[str]) -> dict[str, str]:
    """Return the variables of `NAME=VALUE` texts.

    Raises:
        SystemExit: if a text has no `=`.
    """
    for pair in pairs:
        if "=" not in pair:
            raise SystemExit(f"--env {pair}: not NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def write_json(file: Path | None, data: object) -> None:
    """Write plain data to a JSON file, if one is given."""
    if file is not None:
        file.write_text(json.dumps(data, indent=1), encoding="utf-8")


def exit_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, so that every `finally` runs."""
    signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
