"""A study of a database with its trials, as everything that shows results needs it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from records.trials import Config, StudyRecord, TrialRecord
from search_spaces import HardwareProfile, Price
from storage import StorageError, open_store
from tuner.engines.simulator.learning import HostPosterior
from tuner.errors import SettingError, UserError, see_trials
from tuner.observers.host_learning import learned_in
from tuner.scoring.goals import Objective, parse_objective
from tuner.use_cases.places import find_study, storage_url

if TYPE_CHECKING:
    from tuner.results.findings import Findings


def learned_on(storage: str | None, host: str | None, card: HardwareProfile, version: str) -> HostPosterior | None:
    """Return what the measured trials of a host told about predictions for a card; None: this host, and nothing known.

    Raises:
        UserError: for a database or a host that is given and has no such trial.
    """
    try:
        with closing(open_store(storage_url(storage, create=False))) as store:
            found = learned_in(store, host, card, version)
    except (SettingError, StorageError):
        if storage is None and host is None:
            return None  # a prediction needs no database
        raise
    if found is None and host is not None:
        trials = f"measured trial with vLLM {version} on {card.name}"
        raise SettingError("host", host, f"the database has no {trials} there", "leave it out")
    return found


@dataclass(frozen=True)
class StoredStudy:
    """A study with all its trials.

    Attributes:
        record: of the study.
        trials: all of it, rounds included.
        url: of its database; None: what only Optuna stores is not known.
    """

    record: StudyRecord
    trials: tuple[TrialRecord, ...]
    url: str | None = None

    @cached_property
    def findings(self) -> Findings:
        """The conclusion and what it rests on; an empty one of a study that has none."""
        from tuner.results.findings import Findings  # lists of trials need no statistics

        return Findings.of(self.record, self.trials)

    @property
    def title(self) -> str:
        """The study's name and the provenance of its numbers."""
        return f"{self.record.name} ({self.record.provenance.value})"

    @property
    def document(self) -> dict[str, Any]:
        """The same as the beginning of a JSON document."""
        return {"study": self.record.name, "provenance": self.record.provenance.value}

    @property
    def searched(self) -> dict[int, TrialRecord]:
        """The trials of the search by number, without the rounds."""
        return {trial.number: trial for trial in self.trials if not trial.round}

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The study's objectives."""
        return tuple(parse_objective(text) for text in self.record.premise["objectives"])

    @property
    def defaults(self) -> Config:
        """The engine's defaults by parameter; empty for a study of a version that did not store them."""
        return dict(self.record.facts.get("engine_defaults", {}))

    @property
    def price(self) -> Price | None:
        """The price of a GPU-hour from which the study's costs follow; None in a study that has none."""
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
        if self.url is not None and not round_ and number in self.dropped_numbers:
            from tuner.study.optuna_storage import reason_not_run  # Optuna takes half a second

            why = reason_not_run(self.url, self.record.name, number) or "it was dropped before a launch"
            rule = f"the sampler suggested it, and it never ran: {why}"
            raise UserError(f"study {self.record.name!r} has no {named}: {rule}; {see_trials(self.record.name)}")
        raise UserError(f"study {self.record.name!r} has no {named}; {see_trials(self.record.name)}")


def read_study(storage: str | None, study: str | None) -> StoredStudy:
    """Return a study; without a name, the latest.

    Raises:
        UserError: when there is no such database or study.
    """
    url = storage_url(storage, create=False)
    with closing(open_store(url)) as store:
        record = find_study(store, study)
        return StoredStudy(record, tuple(store.trials(record.name)), url)
