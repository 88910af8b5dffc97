"""The last stages of a study in which no configuration meets the SLOs.

1. Rounds compare the configurations that are nearest to meeting the SLOs, and the reference. Missing an SLO
   disqualifies none of them. One that meets all SLOs in every round wins after all.
2. The capacity of the nearest one is searched: the highest request rate at which all SLOs hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from storage.measured import reference_of
from storage.records import TrialKind, TrialRecord
from storage.store import Store
from tuner.study.conclusion.conclusion import Conclusion, Nearest
from tuner.study.conclusion.decide import conclude
from tuner.study.conclusion.nearest import nearest_of, nearest_trials, without_slos
from tuner.study.loop import Loop
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, Stage, StagePlan, StudyObserver
from tuner.study.specification.spec import StudySpec
from tuner.study.time_limit import TimeLimit
from tuner.study.trial_sources.confirmation import Confirmation, label_of
from tuner.study.trial_sources.given import GivenConfiguration, GivenTrials
from tuner.workloads.traffic import Traffic


class NearestFinals:
    """Those stages; `run` returns why they ended, and the conclusion if there is one."""

    def __init__(
        self,
        spec: StudySpec,
        store: Store,
        optuna_study: OptunaStudy,
        loop: Loop,
        observer: StudyObserver,
        slots: int,
        time_limit: TimeLimit,
    ) -> None:
        self._spec, self._store, self._optuna_study = spec, store, optuna_study
        self._loop, self._observer, self._slots, self._time_limit = loop, observer, slots, time_limit

    def run(self, conclusion: Conclusion) -> tuple[RunEnding, Conclusion | None]:
        """Measure the nearest configurations again; the conclusion is unchanged where there is none.

        Args:
            conclusion: of the finals, without a winner.
        """
        goals, confirmation = self._spec.goals, self._spec.confirmation
        group = self._group(confirmation.finalists)
        if not group or not confirmation.confirm_rounds:
            return RunEnding.DONE, conclusion
        label = f"nearest {label_of(group)}"
        ending = self._measure(group, label)
        if ending is not RunEnding.DONE and self._time_limit.wishes.conclude.is_set():
            return RunEnding.DONE, conclusion
        if ending is not RunEnding.DONE:
            return ending, None
        found = conclude(goals, self._trials(), group, label)
        if found.winner is None:
            nearest = nearest_of(goals, self._trials(), label)
            if nearest is None:
                return RunEnding.DONE, conclusion
            ending, nearest = self._with_capacity(nearest)
            if ending not in (RunEnding.DONE, RunEnding.TIMEOUT):
                return ending, None
            compared = conclude(without_slos(goals), self._trials(), group, label)
            found = replace(compared, winner=None, keeps=None, reason=_reason(nearest), nearest=nearest)
        self._store.update_study(self._spec.name, conclusion=found.to_dict())
        return RunEnding.DONE, found

    def _trials(self) -> list[TrialRecord]:
        return self._store.trials(self._spec.name)

    def _group(self, count: int) -> list[TrialRecord]:
        """Return the reference, if it was measured, and the nearest trials of the search."""
        records = self._trials()
        reference = reference_of(records)
        return [*([] if reference is None else [reference]), *nearest_trials(records, count)]

    def _measure(self, group: Sequence[TrialRecord], label: str) -> RunEnding:
        """Measure a group in rounds; the whole time limit ends them before the last round."""
        goals = without_slos(self._spec.goals)
        source = Confirmation(self._spec, self._store, group, self._slots, label, goals)
        if not source.exhausted():
            names, rounds = tuple(f"#{record.number}" for record in group), tuple(source.rounds)
            self._observer.stage(StagePlan(Stage.CONFIRMATION, len(names) * len(rounds), names, rounds))
        return self._loop.run(source, lambda: not source.exhausted() and self._time_limit.is_over())

    def _with_capacity(self, nearest: Nearest) -> tuple[RunEnding, Nearest]:
        """Return the nearest configuration with its capacity, where traffic has a single rate and time is left."""
        workload = self._spec.workload
        if not isinstance(workload, Traffic) or workload.rate is None or self._spec.goals.has_objective("capacity"):
            return RunEnding.DONE, nearest
        label = f"capacity of #{nearest.number}"
        ending = RunEnding.DONE
        if self._searched(label) is None:
            config = next(record.config for record in self._trials() if record.number == nearest.number)
            source = GivenTrials(self._optuna_study, TrialKind.CAPACITY, [GivenConfiguration(label, config, {})])
            self._observer.stage(StagePlan(Stage.CAPACITY, 1, (f"#{nearest.number}",)))
            ending = self._loop.run(source, self._time_limit.is_over)
        found = self._searched(label)
        if found is None or found.outcome is None or not found.outcome.succeeded:
            return ending, nearest
        capacity = found.outcome.metric("capacity")
        return ending, replace(nearest, rate=workload.rate, capacity=capacity, capacity_trial=found.number)

    def _searched(self, label: str) -> TrialRecord | None:
        """Return the finished search for the capacity with this name."""
        return next((r for r in self._trials() if r.label == label and not r.round and r.outcome is not None), None)


def _reason(nearest: Nearest) -> str:
    """Return the conclusion in one line."""
    missed = [each.slo for each in nearest.slos if each.excess > 0]
    meets = f"it misses {', '.join(missed)}" if missed else "it misses an SLO in some rounds"
    return f"no configuration meets the SLOs in every round; trial {nearest.number} is the nearest: {meets}"
