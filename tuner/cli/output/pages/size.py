"""The page of `tuner size`."""

from __future__ import annotations

import json
from pathlib import Path

from tuner.cancellation import Wishes
from tuner.cli.output.pages.benchmarks import CapacityProgress
from tuner.cli.output.parts import FittedTable, ShellCommand, say, show
from tuner.cli.signals import stop_on_signals
from tuner.errors import EXIT_INTERRUPTED, EXIT_OURS
from tuner.extras import missing
from tuner.files import write_output
from tuner.results import text
from tuner.settings.fleet import SizeSettings
from tuner.use_cases.places import check_folder
from tuner.use_cases.size.confirm import check_machine, confirm, confirmable
from tuner.use_cases.size.page import command_of, document, fleets_grid, reserve_line, verdict, why_lines
from tuner.use_cases.size.sizing import Origin, Sizing, size

PAGE_FILE, JSON_FILE = "size.html", "size.json"


def run_size(settings: SizeSettings, *, as_json: bool) -> int:
    """Predict, measure the cheapest shapes, write page and document, and print the answer.

    Returns:
        the exit code; that of a failure if no fleet was found, or none of the chosen shapes could be measured.
    """
    folder, count = Path(settings.output), settings.confirm
    check_folder(folder)
    if count:
        check_machine(settings)
    sizing, wishes = size(settings), Wishes()
    if count:
        chosen = confirmable(sizing)
        say(f"predicted in {text.duration(sizing.seconds)}; measuring {', '.join(each.name for each in chosen)}")
        with stop_on_signals() as wishes:
            sizing = confirm(sizing, chosen, folder, CapacityProgress(), wishes.stop)
    folder.mkdir(parents=True, exist_ok=True)
    found = document(sizing)
    write_output(folder / JSON_FILE, json.dumps(found, indent=1))
    _write_page(sizing, folder)
    if as_json:
        print(json.dumps(found))
    else:
        _print(sizing, folder)
    if wishes.stop.is_set():
        return EXIT_INTERRUPTED
    return EXIT_OURS if sizing.cheapest is None or (count and sizing.ratio is None) else 0


def _write_page(sizing: Sizing, folder: Path) -> None:
    """Write the page, or say that the library of its figures is missing: the answer does not need it."""
    try:
        from tuner.use_cases.size.html import html  # needs the extra `report`
    except ModuleNotFoundError as error:
        if (lacking := missing(error)) is None:
            raise
        say(f"{PAGE_FILE} was not written: {lacking}")
        return
    write_output(folder / PAGE_FILE, html(sizing))


def _print(sizing: Sizing, folder: Path) -> None:
    if all(each.origin is Origin.PREDICTED for each in sizing.shapes):
        print(f"{text.BANNER}, in {text.duration(sizing.seconds)}")
    print(f"{sizing.model.name}: {reserve_line(sizing)}\n")
    show(FittedTable(fleets_grid(sizing)))
    print(f"\n{verdict(sizing)}")
    if sizing.cheapest is not None:
        show(ShellCommand(command_of(sizing, sizing.cheapest)))
    print("".join(f"- {line}\n" for line in why_lines(sizing)), end="")
    print(f"page: {folder / PAGE_FILE}")
