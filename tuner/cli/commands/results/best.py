"""`tuner best`: the conclusion of a study."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from tuner.cli.commands.results.stored import StoredStudy, read_study
from tuner.cli.options import AsJson, Storage, StudyName

if TYPE_CHECKING:
    from storage.records import TrialRecord

_LEADERS = 3
"""Trials that are shown of a study without a conclusion."""


def best(study: StudyName = None, storage: Storage = None, as_json: AsJson = False) -> None:
    """Show the winner beside the defaults.

    Prints the conclusion, each metric with its ratio and confidence interval, the effect of each flag, and the command
    that starts the server.
    """
    stored = read_study(storage, study)
    winner = _winner(stored)
    if as_json:
        from tuner.cli.output.pages.levers import with_commands

        command = shlex.join(winner.outcome.argv) if winner and winner.outcome else None
        conclusion = with_commands(stored.record.conclusion or {})
        print(json.dumps({"study": stored.record.name, **conclusion, "command": command}, indent=1))
    elif stored.record.conclusion:
        _print_conclusion(stored, winner)
    else:
        _print_leaders(stored)


def _winner(stored: StoredStudy) -> TrialRecord | None:
    number = (stored.record.conclusion or {}).get("winner")
    return next((trial for trial in stored.trials if trial.number == number and not trial.round), None)


def _print_conclusion(stored: StoredStudy, winner: TrialRecord | None) -> None:
    from rich.text import Text

    from tuner.cli.output.pages.conclusion import Findings, conclusion_parts
    from tuner.cli.output.parts.console import show

    conclusion = stored.record.conclusion or {}
    findings = Findings(conclusion, stored.trials, stored.objectives, stored.slos, stored.defaults)
    show(Text(conclusion["reason"], style="bold"), *conclusion_parts(findings))
    if winner is not None and winner.outcome is not None:
        print(f"command of #{winner.number}:\n{shlex.join(winner.outcome.argv)}")


def _print_leaders(stored: StoredStudy) -> None:
    from tuner.cli.commands.results.trials import sorted_trials
    from tuner.cli.output.parts.console import PLAIN_WIDTH, new_table, show, width_of
    from tuner.cli.output.parts.trial_table import fill_trials

    feasible = [trial for trial in stored.trials if trial.state == "ok"]
    leaders = sorted_trials(feasible, "score")[:_LEADERS]
    print(f"study {stored.record.name} has no conclusion yet; the best trials of its search so far:")
    table = new_table()
    names = [objective.metric for objective in stored.objectives]
    fill_trials(table, leaders, names, stored.defaults, width_of(PLAIN_WIDTH))
    show(table)
