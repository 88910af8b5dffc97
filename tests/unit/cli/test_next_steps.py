"""The commands that `tuner optimize` shows at its end."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, Group

from tests.unit.cli.studies import trial
from tuner.cli.output.pages import optimize
from tuner.study.protocols import MlflowLacks


def steps(check: str | None) -> list[str]:
    """Return the lines for a study with a winner and a script."""
    ended: Any = SimpleNamespace(
        script=Path("best_serve.sh"),
        run=SimpleNamespace(conclusion=None),
        check=check,
        records=(trial(3, 1000.0),),
        report=Path("reports/a study.html").absolute(),
        tracking_uri="sqlite:///mlflow.db",
        mlflow_lacks=MlflowLacks.NOTHING,
    )
    console = Console(width=100, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(Group(*optimize._next_steps(ended, 3)))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


@pytest.mark.parametrize("check", [None, "tuner quality --study s"])
def test_a_winner_whose_answers_were_not_checked_has_a_step_that_checks_them(check: str | None) -> None:
    report = "read the report 'reports/a study.html'"
    rest = [report, "list the best trials tuner trials --sort score --top 10", "show one in full tuner show 3"]
    checks = [] if check is None else [f"check the answers {check}"]
    first = ["", "next", "start the server ./best_serve.sh", "verify its figures ./best_serve.sh --verify"]
    assert steps(check) == [*first, *checks, *rest, "compare in MLflow tuner ui"]
