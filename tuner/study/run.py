"""One run of a study: create or resume it, search, measure flag effects, confirm and conclude."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from records.trials import Failure, Provenance, StudyRecord, TrialRecord
from storage.store import Store
from tuner.cancellation import Wishes
from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineInfo
from tuner.errors import SettingError, as_text
from tuner.executors.base import Executor
from tuner.sampler.residual import INITIAL_PREDICTIONS
from tuner.study.conclusion import Conclusion
from tuner.study.finals import WITHOUT_CONCLUSION, Finals, NearestFinals
from tuner.study.learned_prior import Learned, LearnedPrior
from tuner.study.loop import Loop, TimeLimit
from tuner.study.optuna_study import OptunaStudy
from tuner.study.proposals import Proposals
from tuner.study.protocols import RunEnding, Stage, StagePlan, StudyObserver
from tuner.study.simulator_prior import UNKNOWN_CARD
from tuner.study.source_studies import SourceStudy
from tuner.study.specification.spec import Budget, StudySpec, difference, summary_of

OFF_PREDICTIONS = f"the search is shown predictions that are off by {UNKNOWN_CARD:.0%}, as those of an unmeasured card"
"""The note of a simulated study on the predictions that its sampler gets."""
PREDICTIONS_PER_TRIAL = 10
"""Initial predictions for each trial that is asked for, up to the sampler's `INITIAL_PREDICTIONS`."""
_OF_RUNS = ("drivers", "machines")
"""Facts that each run of a study adds to."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    `space_exhausted` is True if every configuration of the space was measured. `converged` is the number of trials in a
    row that brought too little and ended the search before its budget was spent, None if none did. `reason` is the
    failure that ended the run, if one did.
    """

    ending: RunEnding
    space_exhausted: bool
    converged: int | None
    reason: Failure | None
    conclusion: Conclusion | None


def open_study(store: Store, spec: StudySpec, engine: EngineInfo, devices: list[str], clock: Clock) -> None:
    """Create the study, or check that the stored study of that name has the same premise.

    Raises:
        SettingError: with the differences, if its premise differs.
    """
    premise = spec.premise(engine, devices)
    stored = store.study(spec.name)
    if stored is None:
        facts = {**spec.facts, "devices": devices, "executable": engine.executable, **_search_facts(spec)}
        store.create_study(StudyRecord(spec.name, clock.now(), engine.provenance, premise, facts))
        return
    changed = difference(stored.premise, premise)
    if stored.provenance is not engine.provenance:
        changed.append(f"provenance: {stored.provenance} -> {engine.provenance}")
    if changed:
        rule = f"the study of this name has another {as_text(summary_of(changed))}"
        raise SettingError("study", spec.name, rule, "give the same settings, or another name")
    store.update_study(spec.name, facts={**_search_facts(spec), **_run_facts(stored, spec)})


def _run_facts(stored: StudyRecord, spec: StudySpec) -> dict[str, Any]:
    """Return the GPU drivers and the machines that the study has run with, those of this run last."""
    found = {}
    for name in _OF_RUNS:
        known = [*stored.facts.get(name, ()), *spec.facts.get(name, ())]
        if known:
            found[name] = [each for place, each in enumerate(known) if each not in known[:place]]
    return found


def _search_facts(spec: StudySpec) -> dict[str, Any]:
    """Return the sampler, the source studies, and what was known of the host; they may differ when it is resumed."""
    sources = {"learn_from": list(spec.search.learn_from)} if spec.search.learn_from else {}
    learned = {} if spec.learned is None else {"learned": spec.learned.to_dict()}
    return {"sampler": spec.sampler, **sources, **learned}


def run_study(
    spec: StudySpec,
    engine: EngineInfo,
    budget: Budget,
    store: Store,
    storage_url: str,
    executor: Executor,
    observer: StudyObserver,
    wishes: Wishes,
    clock: Clock | None = None,
    sources: Sequence[SourceStudy] = (),
    learned: Learned | None = None,
    measured: Callable[[], None] = lambda: None,
) -> RunResult:
    """Search until the budget is spent, then confirm and conclude; a resumed study continues where it stopped.

    There is no conclusion if a stage is interrupted or its trials keep failing. `learned` corrects the predictions.
    `measured` is called as soon as no trial follows: what is computed then needs no device.
    """
    clock = clock or RealClock()
    began, slots = clock.monotonic(), executor.slots
    predictions = LearnedPrior(spec, engine, learned, wishes.stop)
    with closing(_optuna_study(spec, predictions, sources, storage_url, store, budget.trials)) as optuna_study:
        if predictions.prior is not None and engine.provenance is Provenance.SIMULATED:
            observer.note(OFF_PREDICTIONS)
        for source in sources:
            observer.note(str(source))
        loop = Loop(spec, budget, store, optuna_study, executor, observer, wishes.stop, clock)
        loop.restore()
        proposals = Proposals(spec, store, optuna_study, budget, observer, predictions)
        time_limit = TimeLimit(spec, budget.timeout_s, loop, slots, clock, began, observer, wishes)
        finals = Finals(spec, store, optuna_study, loop, observer, slots, time_limit)
        nearest = NearestFinals(spec, store, optuna_study, loop, observer, slots, time_limit)

        def stopped(ending: RunEnding) -> RunResult:
            measured()
            return RunResult(ending, proposals.space_exhausted, proposals.converged, loop.reason, None)

        observer.stage(StagePlan(Stage.SEARCH, budget.trials))
        ending = loop.run(proposals, time_limit.ends_search)
        if ending in WITHOUT_CONCLUSION:
            return stopped(ending)
        if wishes.pause.is_set():
            return stopped(RunEnding.INTERRUPTED)
        proposals.learn()
        if budget.ablate and ending is not RunEnding.TIMEOUT and (ablation := finals.ablate()) in WITHOUT_CONCLUSION:
            return stopped(ablation)
        ended, conclusion = finals.run()
        if wishes.pause.is_set():
            return stopped(RunEnding.INTERRUPTED)
        if conclusion is not None and conclusion.winner is None:
            ended, conclusion = nearest.run(conclusion)
        if conclusion is None:
            return stopped(ended)
        measured()
        conclusion = finals.with_estimated_effects(conclusion)
        ended = ending if ended is RunEnding.DONE else ended
        return RunResult(ended, proposals.space_exhausted, proposals.converged, None, conclusion)


def _optuna_study(
    spec: StudySpec,
    predictions: LearnedPrior,
    sources: Sequence[SourceStudy],
    storage_url: str,
    store: Store,
    trials: int,
) -> OptunaStudy:
    histories = [source.source_history for source in sources]
    objectives, seed = spec.goals.objectives, spec.search.seed
    place, prior = (storage_url, spec.name, spec.space), predictions.prior
    initial = min(INITIAL_PREDICTIONS, PREDICTIONS_PER_TRIAL * trials)
    return OptunaStudy(*place, objectives, seed, spec.sampler, prior, histories, store, predictions.spread, initial)


def summary_facts(records: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return counts by state, failures by kind, and seconds by phase over all trials, rounds included."""
    states: dict[str, int] = {}
    failures: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for record in records:
        states[record.state] = states.get(record.state, 0) + 1
        if record.outcome is None:
            continue
        if record.failure is not None:
            kind = record.failure.kind.value
            failures[kind] = failures.get(kind, 0) + 1
        for phase, value in record.outcome.timings.items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    return {"states": states, "failures": failures, "seconds": seconds}
