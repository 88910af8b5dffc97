"""What earlier studies in the database teach a new one (`--learn-from`): their trials, by its objectives and SLOs.

A study of the same model on another card, of another model on the same card, or of other traffic: what changes is
mostly the level, and lessons are relative to the defaults (`sampling.transfer`). Metrics were kept, so objectives and
SLOs need not be the same. Simulated studies teach simulated ones, measured ones measured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from search_spaces import ParameterValue, ResolvedSpace
from storage.records import TrialKind, TrialRecord
from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.errors import SettingError
from tuner.sampler.prior.prior_cache import Prediction
from tuner.sampler.surrogate.history import History
from tuner.sampler.transfer import SourceHistory
from tuner.scoring.judge import FAILED
from tuner.study.settings import AUTO, RESIDUAL
from tuner.study.simulator_prior import simulator_prior_of_source
from tuner.study.spec import StudySpec

MOST, LEAST = 120, 10
"""Trials that are learned from, of all earlier studies together, for a choice costs more with each; and of each."""


@dataclass
class SourceStudy:
    """What one study teaches: `history`, the defaults first; `left` trials are outside the space of the new one.

    `measured` and `failed` are the trials that the history's are, `physics` predicts them, if anybody can.
    """

    study: str
    physics: Callable[[TrialRecord], Prediction | None] | None
    history: History = field(default_factory=History)
    measured: list[TrialRecord] = field(default_factory=list)
    failed: list[TrialRecord] = field(default_factory=list)
    left: int = 0

    @property
    def earlier(self) -> SourceHistory:
        """The same for the sampler."""
        physics = self.physics
        if physics is None:
            return SourceHistory(self.history)
        return SourceHistory(self.history, lambda: ([*map(physics, self.measured)], [*map(physics, self.failed)]))

    def __str__(self) -> str:
        taken = len(self.history.measured) + len(self.history.failed)
        left = f"; {self.left} more are outside this study's space" if self.left else ""
        return f"learns from {taken} trials of study {self.study}{left}"


def source_studies(store: Store, spec: StudySpec, engine: EngineInfo) -> list[SourceStudy]:
    """Return what the studies that a study is to learn from teach it.

    Raises:
        UserError: when there is no such study, it cannot teach this one, or this one's sampler does not learn.
    """
    learn_from, sampler = spec.search.learn_from, spec.search.sampler
    if learn_from and sampler not in (AUTO, RESIDUAL):
        raise SettingError("sampler", sampler, f"only {RESIDUAL} uses source studies", "leave out {learn_from}")
    names = list(dict.fromkeys(learn_from))
    return [_lessons(store, spec, engine, name, max(LEAST, MOST // len(names))) for name in names]


def _lessons(store: Store, spec: StudySpec, engine: EngineInfo, name: str, most: int) -> SourceStudy:
    known = store.study(name)
    if name == spec.name:
        rule = "a study uses its own trials anyway"
        raise SettingError("learn_from", name, rule, "leave it out, or choose another name by {study}")
    if known is None:
        names = ", ".join(study.name for study in store.studies() if study.name != spec.name) or "none"
        raise SettingError("learn_from", name, f"the database has no study of this name; studies: {names}")
    if known.provenance is not engine.provenance:
        rule = f"it was {known.provenance}, this study is {engine.provenance}"
        raise SettingError("learn_from", name, rule, "leave it out")
    found = SourceStudy(name, simulator_prior_of_source(known, spec, engine.packages))
    records = [record for record in store.trials(name, finished=True) if not record.round]
    shown = {key for record in records if record.kind is TrialKind.SEARCH for key in record.config}
    for record in _chosen(records, most):
        _take(found, record, spec, shown)
    if len(found.history.measured) < 2:
        metrics = ", ".join(objective.metric for objective in spec.judge.objectives)
        rule = f"fewer than 2 of its trials lie in this study's space and have {metrics}"
        raise SettingError("learn_from", name, rule, "leave it out")
    return found


def _chosen(records: Sequence[TrialRecord], most: int) -> list[TrialRecord]:
    """Return the defaults, then the best half of what may be taken, then others, evenly spread over the study."""
    baseline = [record for record in records if record.kind is TrialKind.BASELINE]
    others = [record for record in records if record.kind is not TrialKind.BASELINE]
    if len(records) <= most:
        return [*baseline, *others]
    ranked = sorted(others, key=lambda record: -((record.verdict and record.verdict.score) or 0.0))
    best, rest = ranked[: most // 2], sorted(ranked[most // 2 :], key=lambda record: record.number)
    wanted = most - len(best) - len(baseline)
    return [*baseline, *best, *(rest[place * len(rest) // wanted] for place in range(wanted))]


def _take(lessons: SourceStudy, record: TrialRecord, spec: StudySpec, shown: set[str]) -> None:
    """Add a trial to what a study teaches, if its configuration is one of the new space and anything came of it."""
    verdict = None if record.outcome is None else spec.judge.verdict(record.outcome, None)
    if verdict is None or record.outcome is None:
        return
    config = _translated(spec.space, record, shown)
    if config is None:
        lessons.left += 1
        return
    values = tuple(value for value in verdict.values.values() if value is not None)
    history = lessons.history
    if record.outcome.failure is not None:
        history.failed.append(config)
        lessons.failed.append(record)
    elif len(values) == len(verdict.values):
        unknown = {str(slo) for slo in spec.judge.slos if record.outcome.metric(slo.metric) is None}
        lessons.measured.append(record)
        history.measured.append(config)
        history.values.append(values)
        history.constraints.append({k: v for k, v in verdict.constraints.items() if k not in {FAILED, *unknown}})


def _translated(space: ResolvedSpace, record: TrialRecord, shown: set[str]) -> dict[str, ParameterValue] | None:
    """Return a configuration in the parameters of another space; None where a value is not in it.

    What the engine decided by itself is taken for the defaults that it has in that space: of the defaults everything,
    of a searched trial what its study did not search.
    """
    searched = record.kind is TrialKind.SEARCH
    hints = {key: value for key, value in space.engine_defaults().items() if not (searched and key in shown)}
    known = {parameter.name: parameter for parameter in space.parameters}
    config = {key: value for key, value in {**hints, **record.config}.items() if key in known}
    return config if all(known[key].contains(value) for key, value in config.items()) else None
