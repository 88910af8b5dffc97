"""A whole run of a study: open or go on, search, confirm, conclude."""

from __future__ import annotations

import fcntl
import os
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from storage.records import Failure, StudyRecord, TrialKind, TrialRecord
from storage.store import Store
from tuner.clock import Clock, RealClock
from tuner.engines.base import EngineInfo
from tuner.errors import UserError
from tuner.executors.base import Executor
from tuner.study.conclusion.decide import Conclusion, conclude
from tuner.study.loop import Loop
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, Stage, StagePlan, StudyObserver
from tuner.study.simulator_prior import simulator_prior
from tuner.study.source_studies import source_studies
from tuner.study.spec import RESIDUAL, Budget, StudySpec, difference
from tuner.study.trial_sources.ablation import Ablation
from tuner.study.trial_sources.confirmation import Confirmation, nominate
from tuner.study.trial_sources.proposals import Proposals


@dataclass(frozen=True)
class RunResult:
    """How a run ended: the space `ran_dry`, or the search `converged` before its budget was spent; by which failure."""

    ending: RunEnding
    ran_dry: bool
    converged: bool
    reason: Failure | None
    conclusion: Conclusion | None


_LOCK = "running.lock"
_ENDED_EARLY = (RunEnding.INTERRUPTED, RunEnding.SAME_FAILURE, RunEnding.INFRASTRUCTURE)


def refuse_running(folder: Path, name: str) -> None:
    """Refuse a study that another process runs, before anything is started; writes nothing.

    Raises:
        UserError: when another process holds it.
    """
    path = folder / _LOCK
    if path.exists():
        with path.open("r+") as file:
            _lock(file, name)


@contextmanager
def study_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold the study for this process; the lock goes with the process, however it ends.

    Raises:
        UserError: when another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+") as file:
        _lock(file, name)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: TextIO, name: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        raise UserError(
            f"study {name!r} is being run by process {owner}; wait for it, or choose another --study"
        ) from None


def as_begun(spec: StudySpec, store: Store) -> StudySpec:
    """Return the study with what it began with, if it did: the search's load, and whom it learns from if not said."""
    known = store.study(spec.name)
    if known is None:
        return spec
    learn_from = spec.learn_from or tuple(known.facts.get("learn_from", ()))
    prompts = known.premise.get("search", {}).get("num_prompts")  # trials of two loads cannot be compared
    return replace(spec, search_prompts=prompts, learn_from=learn_from)


def open_study(store: Store, spec: StudySpec, engine: EngineInfo, devices: list[str], clock: Clock) -> None:
    """Create the study, or check that the one of that name has the same premise.

    Raises:
        UserError: with every difference, when it has another premise.
    """
    premise = spec.premise(engine, devices)
    known = store.study(spec.name)
    if known is None:
        facts = {**spec.facts, "devices": devices, "executable": engine.executable, **_search_facts(spec, engine)}
        store.create_study(StudyRecord(spec.name, clock.now(), engine.provenance, premise, facts))
        return
    changed = difference(known.premise, premise)
    if known.provenance is not engine.provenance:
        changed.append(f"provenance: {known.provenance} -> {engine.provenance}")
    if changed:
        shown = "; ".join(changed[:8])
        raise UserError(
            f"study {spec.name!r} cannot go on, its premise changed: {shown}; "
            "give the same arguments, or another --study name"
        )
    store.update_study(spec.name, facts=_search_facts(spec, engine))


def _search_facts(spec: StudySpec, engine: EngineInfo) -> dict[str, Any]:
    """Return who searches, and whom it learns from: what may change when a study goes on."""
    taught = {"learn_from": list(spec.learn_from)} if spec.learn_from else {}
    return {"sampler": spec.sampler_for(engine), **taught}


def run_study(
    spec: StudySpec,
    budget: Budget,
    store: Store,
    storage_url: str,
    executor: Executor,
    listener: StudyObserver,
    stop: threading.Event,
    clock: Clock | None = None,
) -> RunResult:
    """Search until the budget is spent, then confirm and conclude; goes on where an earlier run stopped."""
    clock = clock or RealClock()
    began = clock.monotonic()
    engine = executor.engine_info()
    sampler = spec.sampler_for(engine)
    prior = simulator_prior(spec, engine) if sampler == RESIDUAL else None
    lessons = source_studies(store, spec, engine)
    earlier = [each.earlier for each in lessons]
    learner = OptunaStudy(storage_url, spec.name, spec.space, spec.judge.objectives, spec.seed, sampler, prior, earlier)
    for each in lessons:
        listener.note(str(each))
    proposals = Proposals(spec, store, learner, budget, listener)
    loop = Loop(spec, budget, store, learner, executor, listener, stop, clock)

    def time_is_up() -> bool:
        if budget.timeout_s is None:
            return False
        reserve = expected_confirmation_s(spec, loop.walls, loop.loads, executor.slots)
        return clock.monotonic() - began + reserve >= budget.timeout_s

    listener.stage(StagePlan(Stage.SEARCH, budget.trials))
    ending = loop.run(proposals, time_is_up)
    if ending in _ENDED_EARLY:
        return RunResult(ending, proposals.ran_dry, proposals.converged, loop.reason, None)
    if budget.ablate and ending is not RunEnding.TIMEOUT:
        ablated = _ablate(spec, store, learner, loop, listener, time_is_up)
        if ablated in _ENDED_EARLY:
            return RunResult(ablated, proposals.ran_dry, proposals.converged, loop.reason, None)
    records = store.trials(spec.name)
    finalists = _finalists(records, spec.finalists, learner.ranking())
    label = None
    if spec.confirm_rounds and len(finalists) > 1 and any(f.kind is TrialKind.BASELINE for f in finalists):
        confirmation = Confirmation(spec, store, finalists, executor.slots)
        label = confirmation.label
        if not confirmation.exhausted():
            rounds, names = tuple(confirmation.rounds), tuple(f"#{each.number}" for each in finalists)
            listener.stage(StagePlan(Stage.CONFIRMATION, len(names) * len(rounds), names, rounds))
        confirmed = loop.run(confirmation, lambda: False)
        if confirmed is not RunEnding.DONE:
            return RunResult(confirmed, proposals.ran_dry, proposals.converged, loop.reason, None)
    conclusion = conclude(spec.judge, store.trials(spec.name), finalists, label)
    store.update_study(spec.name, conclusion=conclusion.to_dict())
    conclusion = _with_earned(conclusion, finalists, learner, listener)
    store.update_study(spec.name, conclusion=conclusion.to_dict())
    return RunResult(ending, proposals.ran_dry, proposals.converged, None, conclusion)


def _ablate(
    spec: StudySpec,
    store: Store,
    learner: OptunaStudy,
    loop: Loop,
    listener: StudyObserver,
    time_is_up: Callable[[], bool],
) -> RunEnding:
    """Measure what the sampler thinks best without each of its flags."""
    best = next(iter(nominate(store.trials(spec.name), 1, learner.ranking())), None)
    source = Ablation(spec, store, learner, best)
    if source.planned:
        listener.stage(StagePlan(Stage.ABLATION, len(source.planned), tuple(source.planned)))
    return loop.run(source, time_is_up)


def _with_earned(
    conclusion: Conclusion, finalists: Sequence[TrialRecord], learner: OptunaStudy, listener: StudyObserver
) -> Conclusion:
    """Return a conclusion with what each of the winner's parameters earns, where it is not the defaults that won."""
    defaults = next((finalist.number for finalist in finalists if finalist.kind is TrialKind.BASELINE), None)
    if conclusion.winner is None or defaults is None or conclusion.winner == defaults:
        return conclusion
    try:
        return replace(conclusion, earned=tuple(learner.flag_effects(conclusion.winner, defaults)))
    except (ArithmeticError, ValueError) as error:  # hours of measurements are worth more than this
        listener.note(f"what the winner's flags earn is not known: {type(error).__name__}: {error}")
        return conclusion


def _finalists(records: Sequence[TrialRecord], count: int, ranking: Sequence[int]) -> list[TrialRecord]:
    """Return the defaults, if they were measured, and the best few."""
    baseline = [r for r in records if r.kind is TrialKind.BASELINE and r.outcome is not None and r.outcome.succeeded]
    return [*baseline[:1], *nominate(records, count, ranking)]


def expected_confirmation_s(spec: StudySpec, walls: Sequence[float], loads: Sequence[float], slots: int) -> float:
    """Return the seconds that the finalists' rounds will take, from those of the trials so far (0: there are none).

    Args:
        spec: the study; its rounds may send more often than its search, and more at a time.
        walls: seconds of each trial, all in all.
        loads: seconds of each trial's loads, all its repeats.
        slots: how many rounds run at a time.
    """
    if not walls or not spec.confirm_rounds:
        return 0.0
    rest = statistics.median(wall - load for wall, load in zip(walls, loads, strict=True))
    typical = rest + statistics.median(loads) * spec.times_the_search
    turns = -(-spec.confirm_rounds // slots)
    return typical * (spec.finalists + 1) * turns


def summary_facts(records: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return counts by state, failures by kind, and seconds by phase over all trials, rounds included."""
    states: dict[str, int] = {}
    failures: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for record in records:
        states[record.state] = states.get(record.state, 0) + 1
        if record.outcome is None:
            continue
        if record.outcome.failure is not None:
            kind = record.outcome.failure.kind.value
            failures[kind] = failures.get(kind, 0) + 1
        for phase, value in record.outcome.timings.items():
            seconds[phase] = seconds.get(phase, 0.0) + value
    return {"states": states, "failures": failures, "seconds": seconds}
