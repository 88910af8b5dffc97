"""The page of `tuner recheck`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tuner.cli.options import option_of
from tuner.cli.output.parts import FittedTable, say, show
from tuner.cli.signals import stop_on_signals
from tuner.errors import SettingError, UserError, reason_of, spelled
from tuner.use_cases.recheck.recheck import RecheckSettings as RecheckSettings
from tuner.use_cases.recheck.recheck import recheck
from tuner.use_cases.recheck.result import junit, markdown


def run_recheck(settings: RecheckSettings, *, junit_file: Path | None, summary: Path | None, as_json: bool) -> int:
    """Recheck a study, print and write the result, and return the exit code."""
    for name, file in (("junit", junit_file), ("summary", summary), ("save", settings.save)):
        if file is not None and not file.absolute().parent.is_dir():
            raise SettingError(name, str(file), "its folder does not exist", "make it first")
    stream = sys.stderr if as_json else sys.stdout

    def tell(lines: list[str]) -> None:
        print("\n".join(lines), file=stream, flush=True)

    try:
        with stop_on_signals() as wishes:
            result = recheck(settings, tell, say, wishes.stop)
    except SettingError as error:
        if error.field != "study":
            raise
        raise UserError(error.message(option_of, " ").removeprefix("--")) from None  # an argument, not an option
    following = [] if result.next_step is None else [f"next: {spelled(result.next_step, option_of)}"]
    if junit_file is not None:
        _write(junit_file, junit(result), "w")
    if summary is not None:
        _write(summary, markdown(result, following), "a")
    if as_json:
        print(json.dumps({**result.document, "next": following[0][6:] if following else None}, indent=1))
        return result.exit_code
    show(*(FittedTable(each) for each in result.tables()))
    print("\n".join([*result.lines(), *following]))
    for line in result.disturbed:
        say(line)
    return result.exit_code


def _write(file: Path, content: str, mode: str) -> None:
    try:
        with file.open(mode, encoding="utf-8") as opened:
            opened.write(content)
    except OSError as error:
        raise UserError(f"{file} cannot be written: {reason_of(error)}; give another file") from None
