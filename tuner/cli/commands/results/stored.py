"""A study of a database, as the commands that read one need it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.errors import UserError
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    from search_spaces import Price
    from storage.records import Config, StudyRecord, TrialRecord
    from tuner.scoring.objectives import Objective
    from tuner.scoring.slo import Slo


@dataclass(frozen=True)
class StoredStudy:
    """A study and all its trials, the rounds' measurements included; `url` is that of its database."""

    record: StudyRecord
    trials: tuple[TrialRecord, ...]
    url: str = ""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The study's objectives."""
        from tuner.scoring.objectives import parse_objective

        return tuple(parse_objective(text) for text in self.record.premise["objectives"])

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The study's SLOs."""
        from tuner.scoring.slo import parse_slo

        return tuple(parse_slo(text) for text in self.record.premise["slos"])

    @property
    def defaults(self) -> Config:
        """The engine's defaults by parameter; empty for a study of a version that did not store them."""
        return dict(self.record.facts.get("engine_defaults", {}))

    @property
    def price(self) -> Price | None:
        """The price of a GPU-hour from which the study's costs follow; None in a study that has none."""
        from search_spaces import Price

        return Price.from_dict(self.record.facts.get("price"))

    @property
    def dropped_numbers(self) -> list[int]:
        """Numbers below the highest one that no trial has: suggestions that were dropped before a launch."""
        numbers = {trial.number for trial in self.trials}
        return sorted({*range(max(numbers, default=-1) + 1)} - numbers)

    def trial(self, number: int, round_: int = 0) -> TrialRecord:
        """Return a trial, or the measurement of it in a round.

        Raises:
            UserError: when there is none, with the reason.
        """
        for trial in self.trials:
            if (trial.number, trial.round) == (number, round_):
                return trial
        named = f"trial {number}" + (f" round {round_}" if round_ else "")
        if not round_ and number in self.dropped_numbers:
            from tuner.study.optuna_storage import reason_not_run

            why = reason_not_run(self.url, self.record.name, number) or "it was dropped before a launch"
            rule = f"the sampler suggested it, and it never ran: {why}"
            raise UserError(f"study {self.record.name!r} has no {named}: {rule}; see `tuner trials`")
        raise UserError(f"study {self.record.name!r} has no {named}; see `tuner trials`")


def read_study(storage: str | None, study: str | None) -> StoredStudy:
    """Return a study; without a name, the latest.

    Raises:
        UserError: when there is no such database or study.
    """
    from storage import open_store

    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        record = find_study(store, study)
        return StoredStudy(record, tuple(store.trials(record.name)), url)


def require_classes(study: StudyRecord) -> None:
    """Check that the study's workload has request classes.

    Raises:
        UserError: for a closed loop, which has none.
    """
    from dashboards.analysis.tradeoff import request_classes

    if not request_classes(study):
        raise UserError(
            f"the workload of study {study.name!r} has no request classes; "
            "start a study with traffic, `tuner optimize --workload FILE`, or see `tuner trials`"
        )
