"""Read the source studies of a new study (`--learn-from`), whose trials warm-start its sampler.

A source study has another GPU, another model or another workload than the new study, so that its values have another
level. The sampler therefore reads them relative to the source study's own defaults (`tuner.sampler.transfer`). The
trials are evaluated by the objectives and SLOs of the new study, which the source study need not share, because the
database contains every metric. Simulated studies are sources of simulated studies only, measured ones of measured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from records.trials import TrialKind, TrialRecord
from search_spaces import ParameterValue, ResolvedSpace
from storage.store import Store
from tuner.engines.base import EngineInfo
from tuner.errors import SettingError
from tuner.sampler.history import History
from tuner.sampler.prior import Prediction
from tuner.sampler.transfer import SourceHistory
from tuner.scoring.goals import FAILED
from tuner.settings.study import AUTO, RESIDUAL
from tuner.study.simulator_prior import simulator_prior_of_source
from tuner.study.specification.spec import StudySpec

SOURCE_TRIALS = 120
"""Most trials of all source studies together; the cost of a suggestion grows with them."""
LEAST_OF_EACH = 10
"""Trials of each source study that are read in any case, even if many source studies exceed `SOURCE_TRIALS`."""
_LEAST_MEASURED = 2
"""Measured trials that a source study needs: the reference and one more."""


@dataclass
class SourceStudy:
    """A source study, whose trials `predict` predicts; None if the simulator cannot.

    `history` has its trials in the search space of the new study, the defaults first; `outside` counts the others.
    `measured` and `failed` are the records of those parts of the history.
    """

    study: str
    predict: Callable[[TrialRecord], Prediction | None] | None
    history: History = field(default_factory=History)
    measured: list[TrialRecord] = field(default_factory=list)
    failed: list[TrialRecord] = field(default_factory=list)
    outside: int = 0

    @property
    def source_history(self) -> SourceHistory:
        """The trials and their predictions, as the sampler reads them."""
        predict = self.predict
        if predict is None:
            return SourceHistory(self.history)
        return SourceHistory(self.history, lambda: ([*map(predict, self.measured)], [*map(predict, self.failed)]))

    def __str__(self) -> str:
        used = len(self.history.measured) + len(self.history.failed)
        outside = f"; {self.outside} more lie outside this study's space" if self.outside else ""
        return f"warm start from {used} trials of study {self.study}{outside}"


def source_studies(store: Store, spec: StudySpec, engine: EngineInfo) -> list[SourceStudy]:
    """Return the source studies that the new study names.

    Raises:
        SettingError: if a source study does not exist or does not fit the new study, or its sampler uses no sources.
    """
    learn_from, sampler = spec.search.learn_from, spec.search.sampler
    if learn_from and sampler not in (AUTO, RESIDUAL):
        raise SettingError("sampler", sampler, f"only {RESIDUAL} uses source studies", "leave out {learn_from}")
    names = list(dict.fromkeys(learn_from))
    most = max(LEAST_OF_EACH, SOURCE_TRIALS // max(len(names), 1))
    return [_source_study(store, spec, engine, name, most) for name in names]


def _source_study(store: Store, spec: StudySpec, engine: EngineInfo, name: str, most: int) -> SourceStudy:
    """Return the source study of a name, with at most `most` of its trials; errors as for `source_studies`."""
    record = store.study(name)
    if name == spec.name:
        rule = "a study uses its own trials anyway"
        raise SettingError("learn_from", name, rule, "leave it out, or choose another name by {study}")
    if record is None:
        raise SettingError(
            "learn_from", name, "the database has no study of this name", "`tuner study list` lists them"
        )
    if record.provenance is not engine.provenance:
        rule = f"it was {record.provenance}, this study is {engine.provenance}"
        raise SettingError("learn_from", name, rule, "leave it out")
    source = SourceStudy(name, simulator_prior_of_source(record, spec, engine.packages))
    trials = [trial for trial in store.trials(name, finished=True) if not trial.round]
    searched = {key for trial in trials if trial.kind is TrialKind.SEARCH for key in trial.config}
    for trial in _most_useful(trials, most):
        _add(source, trial, spec, searched)
    if len(source.history.measured) < _LEAST_MEASURED:
        metrics = ", ".join(objective.metric for objective in spec.goals.objectives)
        rule = f"fewer than {_LEAST_MEASURED} of its trials lie in this study's space and have {metrics}"
        raise SettingError("learn_from", name, rule, "leave it out")
    return source


def _most_useful(trials: Sequence[TrialRecord], most: int) -> list[TrialRecord]:
    """Return at most `most` trials: the defaults, the trials with the best scores, and others.

    The best are half of `most`. The others are evenly spread over the study, so that weak ones are among them.
    """
    baseline = [trial for trial in trials if trial.kind is TrialKind.BASELINE]
    others = [trial for trial in trials if trial.kind is not TrialKind.BASELINE]
    if len(trials) <= most:
        return [*baseline, *others]
    ranked = sorted(others, key=lambda trial: -(trial.score or 0.0))
    best, rest = ranked[: most // 2], sorted(ranked[most // 2 :], key=lambda trial: trial.number)
    count = most - len(best) - len(baseline)
    return [*baseline, *best, *(rest[index * len(rest) // count] for index in range(count))]


def _add(source: SourceStudy, trial: TrialRecord, spec: StudySpec, searched: set[str]) -> None:
    """Add a trial to a source study if the new study can learn from it; count it if it lies outside the search space.

    The new study learns from trials with a value of every objective and from those that failed by their configuration.
    An SLO whose metric the source study did not measure says nothing about the new study, so it is left out.

    Args:
        source: is extended.
        trial: of the source study.
        spec: of the new study.
        searched: parameters that the source study's search set in any trial.
    """
    verdict = None if trial.outcome is None else spec.goals.verdict(trial.outcome, None)
    if verdict is None or trial.outcome is None:
        return
    config = _translated(spec.space, trial, searched)
    if config is None:
        source.outside += 1
        return
    values = tuple(value for value in verdict.values.values() if value is not None)
    history = source.history
    if trial.outcome.failure is not None:
        history.failed.append(config)
        source.failed.append(trial)
    elif len(values) == len(verdict.values):
        unmeasured = {str(slo) for slo in spec.goals.slos if trial.outcome.metric(slo.metric) is None}
        constraints = {k: v for k, v in verdict.constraints.items() if k not in {FAILED, *unmeasured}}
        source.measured.append(trial)
        history.measured.append(config)
        history.values.append(values)
        history.constraints.append(constraints)


def _translated(space: ResolvedSpace, trial: TrialRecord, searched: set[str]) -> dict[str, ParameterValue] | None:
    """Return the configuration of a source trial in the new search space; None if a value is not in it.

    A parameter that the trial left to the engine gets the engine's default of the new space. A trial of the search
    left to the engine only the parameters that its study did not search: a searched one that it lacks is an inactive
    conditional parameter, and stays absent.
    """
    inactive = searched if trial.kind is TrialKind.SEARCH else set()
    defaults = {key: value for key, value in space.engine_defaults().items() if key not in inactive}
    known = {parameter.name: parameter for parameter in space.parameters}
    config = {key: value for key, value in {**defaults, **trial.config}.items() if key in known}
    return config if all(known[key].contains(value) for key, value in config.items()) else None
