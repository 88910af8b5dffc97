"""A study without what its user does not pass on: the records from which a bundle is written."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage.records import Failure, StudyRecord, TrialOutcome, TrialRecord
from tuner.processes.secrets import is_secret_variable, referenced, url_passwords
from tuner.use_cases.bundle.private_texts import PrivateTexts, users_in
from tuner.use_cases.other_cards import CardPrediction
from tuner.use_cases.places import home
from tuner.use_cases.report.reported import ReportedStudy

LEAST_SECRET = 8
"""Shorter values of secret variables of this machine are not searched for: they occur by chance."""

FACTS = ("preset", "hardware", "price", "devices", "drivers", "engine_defaults", "sampler", "machines")
"""Facts of a study that are passed on. The others are paths, and the host."""

GOALS = ("objectives", "slos")
"""Settings that name metrics and request classes, which stay."""


@dataclass(frozen=True)
class AnonymousStudy(ReportedStudy):
    """A study of clean records.

    Attributes:
        original: the study whose files, importance of parameters and predictions it shows.
        texts: what may not be in the texts of the predictions.
    """

    original: ReportedStudy | None = None
    texts: PrivateTexts = field(default_factory=PrivateTexts)

    @property
    def importance(self) -> Mapping[str, tuple[float, float, float]]:
        """By parameter, see `ReportedStudy.importance`."""
        return {} if self.original is None else self.original.importance

    @property
    def cards(self) -> tuple[CardPrediction, ...]:
        """See `ReportedStudy.cards`."""
        return () if self.original is None else tuple(map(self._clean_card, self.original.cards))

    def _clean_card(self, card: CardPrediction) -> CardPrediction:
        defaults, winner = (
            each if each is None or each.failure is None else replace(each, failure=self.texts.clean(each.failure))
            for each in (card.defaults, card.winner)
        )
        return replace(card, defaults=defaults, winner=winner)


def private_texts(study: ReportedStudy, environment: Mapping[str, str]) -> PrivateTexts:
    """Return what may not be in a bundle of a study, by what this machine and the study's records say.

    Args:
        study: the study.
        environment: the variables of this process.
    """
    needed = referenced(_strings(study.record.premise.get("server", {})))
    secrets = {
        name: value
        for name, value in environment.items()
        if name in needed or (is_secret_variable(name) and len(value) >= LEAST_SECRET)
    }
    for name, text in {**environment, "STORAGE": study.url or ""}.items():
        secrets.update({f"{name}_PASSWORD": password for password in url_passwords(text)})
    texts = [*_texts_of(study)]
    folders = [os.fspath(each) for each in (Path.home(), home(), Path.cwd(), *_study_folders(study))]
    given = {environment.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")}
    users = {*given, *users_in([*texts, *folders]), _user()} - {""}
    name = socket.gethostname()
    hosts = {name, name.partition(".")[0], str(study.record.facts.get("host") or "")} - {""}
    return PrivateTexts(secrets, folders, users, hosts)


def anonymous(study: ReportedStudy, texts: PrivateTexts) -> AnonymousStudy:
    """Return the study without secrets, paths, names of users and hosts, and variables that its user set."""
    record = study.record
    name = texts.clean(record.name)
    premise = {key: value if key in GOALS else texts.walk(value) for key, value in record.premise.items()}
    premise["server"] = {**premise.get("server", {}), "environment": {}}
    if "files" in premise:
        premise["files"] = {texts.clean(path): digest for path, digest in premise["files"].items()}
    facts = {key: texts.walk(value) for key, value in record.facts.items() if key in FACTS}
    conclusion = None if record.conclusion is None else texts.walk(record.conclusion)
    shown = StudyRecord(name, record.created_at, record.provenance, premise, facts, conclusion)
    variables = frozenset(record.premise.get("server", {}).get("environment", {}))
    workers = _workers(study.trials)
    trials = tuple(_trial(trial, name, texts, variables, workers) for trial in study.trials)
    return AnonymousStudy(shown, trials, study.url, study, texts)


def _trial(
    trial: TrialRecord, study: str, texts: PrivateTexts, variables: frozenset[str], workers: Mapping[str, str]
) -> TrialRecord:
    label = None if trial.label is None else texts.clean(trial.label)
    outcome = None if trial.outcome is None else _outcome(trial.outcome, texts, variables, workers)
    params, config = texts.walk(trial.params), texts.walk(trial.config)
    return replace(trial, study=study, label=label, params=params, config=config, outcome=outcome)


def _outcome(
    outcome: TrialOutcome, texts: PrivateTexts, variables: frozenset[str], workers: Mapping[str, str]
) -> TrialOutcome:
    """Return a clean outcome; its folder of artifacts stays, because the report's figures read files there."""
    own = {name: value for name, value in outcome.environment.items() if name not in variables}
    return replace(
        outcome,
        worker=workers[outcome.worker],
        argv=tuple(map(texts.clean, outcome.argv)),
        environment=texts.walk(own),
        failure=None if outcome.failure is None else _failure(outcome.failure, texts),
    )


def _failure(failure: Failure, texts: PrivateTexts) -> Failure:
    evidence = None if failure.evidence is None else texts.clean(failure.evidence)
    return replace(failure, message=texts.clean(failure.message), evidence=evidence)


def _workers(trials: Sequence[TrialRecord]) -> dict[str, str]:
    """Return a number for each worker, because its name may contain that of its host."""
    names = dict.fromkeys(trial.outcome.worker for trial in trials if trial.outcome is not None)
    return {name: f"w{number}" for number, name in enumerate(names)}


def _user() -> str:
    """Return the name of the user who runs this process; empty if the system does not know it."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _study_folders(study: ReportedStudy) -> Iterator[Path]:
    """Yield the folders of the study: of its database, its script and its artifacts."""
    if study.url is not None and study.url.startswith("sqlite:///"):
        yield Path(study.url.removeprefix("sqlite:///")).resolve().parent
    yield from (Path(path).parent for name in ("script", "report") if (path := study.record.facts.get(name)))
    yield from (Path(trial.outcome.artifacts).parent for trial in study.trials if trial.outcome is not None)


def _texts_of(study: ReportedStudy) -> Iterator[str]:
    """Yield every text of a study's records."""
    yield from _strings([study.record.premise, study.record.facts, study.record.conclusion])
    for trial in study.trials:
        yield from _strings([trial.label, trial.config])
        if (outcome := trial.outcome) is not None:
            failure = outcome.failure
            yield from _strings([outcome.artifacts, outcome.argv, outcome.environment, outcome.worker])
            yield from _strings([] if failure is None else [failure.message, failure.evidence])


def _strings(value: Any) -> Iterator[str]:
    """Yield the texts of a JSON value, names of members included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from map(str, value)
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
