"""Rounds of a few servers in alternation, until a verdict is known: each round starts every server once.

A round sends the same requests to all, with seeds that no trial used, and the order turns from round to round, as in a
study's confirmation (`tuner.study.confirmation`). After the numbers of rounds of `tuner.scoring.sequential.looks` the
rounds may end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from records.trials import Culprit, Failure, TrialKind, TrialOutcome, TrialRecord
from tuner.errors import InfrastructureError
from tuner.export.verification import VERIFY_SEED
from tuner.scoring.sequential import looks
from tuner.specs import LaunchSpec, TrialSpec
from tuner.study.specification.spec import Budget
from tuner.trial.pipeline import run_trial
from tuner.use_cases.recheck.expected import Expected, Setup
from tuner.use_cases.recheck.today import Installation

ROUND_SEED = 1000
"""Between the seeds of two rounds, as in a study."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Arm:
    """A server that takes part: its name in texts, what it is, and the installation that runs it."""

    name: str
    setup: Setup
    installation: Installation


class Alternation:
    """Measures arms in rounds; a record's number is the position of its arm."""

    def __init__(self, expected: Expected, arms: Sequence[Arm], folder: Path, stop: threading.Event, say: Say) -> None:
        """Take the arms, the one that the others are compared with first; `folder` gets the logs."""
        self._expected, self._arms, self._folder, self._stop, self._say = expected, arms, folder, stop, say
        self.records: list[TrialRecord] = []

    def run(self, rounds: int, is_decided: Callable[[], bool]) -> None:
        """Measure until `is_decided` after one of the looks, or a server fails by its configuration.

        Raises:
            InfrastructureError: if a server cannot be measured for another reason.
            KeyboardInterrupt: if the command was stopped.
        """
        ends = looks(rounds)
        for round_ in range(1, ends[-1] + 1):
            turn = (round_ - 1) % len(self._arms)
            places = list(range(len(self._arms)))
            for place in (*places[turn:], *places[:turn]):
                self._say(f"round {round_} of at most {ends[-1]}: {self._arms[place].name}")
                self.records.append(self._record(place, round_))
            if any(each.failure is not None for each in self.records):
                return
            if round_ in ends and is_decided():
                return

    def _record(self, place: int, round_: int) -> TrialRecord:
        arm = self._arms[place]
        outcome = self._measured(place, round_)
        return TrialRecord(
            self._expected.study, place, round_, TrialKind.CONFIRM, arm.name, {}, {}, 1, datetime.now(UTC), outcome
        )

    def _measured(self, place: int, round_: int) -> TrialOutcome:
        """Return the measurement of an arm; a failure of the infrastructure is tried again, as in a study."""
        installation, failure = self._arms[place].installation, None
        for attempt in range(1, Budget.attempts + 1):
            outcome = run_trial(
                installation.engine,
                self._spec(place, round_, attempt),
                self._stop,
                worker="w0",
                device=installation.device,
            )
            if self._stop.is_set():
                raise KeyboardInterrupt
            failure = outcome.failure
            if failure is None or failure.culprit is Culprit.CONFIGURATION:
                return outcome
        raise InfrastructureError(_gave_up(self._arms[place].name, failure, self._folder))

    def _spec(self, place: int, round_: int, attempt: int) -> TrialSpec:
        expected, setup = self._expected, self._arms[place].setup
        seed = expected.workload.seed + VERIFY_SEED + ROUND_SEED * round_
        launch = LaunchSpec(
            model=expected.model(setup),
            argv=setup.flags,
            environment=dict(setup.environment),
            command=expected.command,
            folder=expected.folder,
        )
        spec = TrialSpec(
            study=expected.study,
            number=place,
            round=round_,
            attempt=attempt,
            kind=TrialKind.CONFIRM,
            config={},
            launch=launch,
            workload=expected.workload.model_copy(update={"seed": seed}),
            repeats=expected.repeats,
            artifacts=self._folder,
            capacity_slos=expected.goals.slos if expected.goals.has_objective("capacity") else None,
            price_per_hour=None if expected.price is None else expected.price.per_gpu_hour * launch.gpus(expected.gpus),
            gpus=expected.gpus,
        )
        return replace(spec, artifacts=self._folder / spec.uid)


def _gave_up(name: str, failure: Failure | None, folder: Path) -> str:
    assert failure is not None
    why = f"{failure.kind}: {failure.message}"
    return f"{name} could not be measured, {Budget.attempts} attempts: {why}; see {folder}, and run the command again"
