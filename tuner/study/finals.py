"""The finals of a study: from the finalists of the search to the smallest configuration that is as good.

Rounds measure the reference, the configuration that would be exported, its strongest rival and one smaller form, until
the choice is certain enough (`Contest`). Without `reduce`, a fixed number of rounds measures every finalist. Every step
is planned from the stored trials, so that a continued study goes on where it stopped.

Where no configuration meets the SLOs, two other stages follow (`NearestFinals`):

1. Rounds compare the configurations that are nearest to meeting the SLOs, and the reference. Missing an SLO
   disqualifies none of them. One that meets all SLOs in every round wins after all.
2. The capacity of the nearest one is searched: the highest request rate at which all SLOs hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from records.measured import REFERENCES, reference_of
from records.trials import TrialKind, TrialRecord
from storage.store import Store
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.rounds import StudyRounds
from tuner.study.alternatives import nearest_of, nearest_trials, without_slos
from tuner.study.conclusion import Conclusion, Nearest, measured_effects, without_one_flag
from tuner.study.confirmation import Confirmation, label_of, nominate
from tuner.study.contest import FEWEST_ARMS, Contest
from tuner.study.decide import Preference, conclude
from tuner.study.loop import Loop, TimeLimit
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, Stage, StagePlan, StudyObserver
from tuner.study.reduction import Ablation, GivenConfiguration, GivenTrials
from tuner.study.specification.spec import StudySpec
from tuner.workloads.traffic import Traffic

WITHOUT_CONCLUSION = (
    RunEnding.INTERRUPTED,
    RunEnding.DEFAULTS_FAILED,
    RunEnding.SAME_FAILURE,
    RunEnding.INFRASTRUCTURE,
)
"""Endings of a stage after which nothing is concluded; the next run continues it."""


class _Stages:
    """What the stages after the search have in common."""

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
        self._ending = RunEnding.DONE

    def _trials(self) -> list[TrialRecord]:
        return self._store.trials(self._spec.name)

    def _beside_reference(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the reference, if it was measured, and these trials."""
        reference = reference_of(self._trials())
        return [*([] if reference is None else [reference]), *trials]

    def _completed(
        self, confirmation: Confirmation, group: Sequence[TrialRecord], time_is_up: Callable[[], bool]
    ) -> bool:
        """Measure the rounds of a group; return False if they are not complete."""
        if not confirmation.exhausted():
            names, rounds = tuple(f"#{record.number}" for record in group), tuple(confirmation.rounds)
            self._observer.stage(StagePlan(Stage.CONFIRMATION, len(names) * len(rounds), names, rounds))
        self._ending = self._loop.run(confirmation, lambda: not confirmation.exhausted() and time_is_up())
        return self._ending is RunEnding.DONE


class Finals(_Stages):
    """The stages after the search; `run` returns why they ended, and the conclusion if there is one."""

    def run(self) -> tuple[RunEnding, Conclusion | None]:
        """Run every stage; the time limit ends the stages, not the conclusion.

        Before the first rounds are complete, the conclusion rests on the search, and does not replace one of rounds.
        """
        finalists = self._beside_reference(self._nominated(self._spec.confirmation.finalists))
        if not self._can_confirm(finalists):
            return RunEnding.DONE, self._stored(conclude(self._spec.goals, self._trials(), finalists, None))
        label = label_of(finalists)
        if self._spec.confirmation.reduce:
            contest = Contest(self._spec, self._store, self._optuna_study, finalists, label, self._time_limit.room)
            done = self._measured(contest)
            group, preference = contest.group(done), contest.preference(done)
        else:
            group, preference = self._fitting(finalists), Preference()
            confirmation = Confirmation(self._spec, self._store, group, self._slots, label)
            done = len(confirmation.rounds) if self._completed(confirmation, group, self._time_limit.is_over) else 0
        if self._ending in WITHOUT_CONCLUSION:
            return self._ending, None
        if not done:
            return self._without_rounds(finalists)
        conclusion = conclude(self._spec.goals, self._trials(), group, label, preference)
        return RunEnding.DONE, self._stored(replace(conclusion, flag_effects=self._effects(conclusion, group)))

    def _without_rounds(self, finalists: Sequence[TrialRecord]) -> tuple[RunEnding, Conclusion | None]:
        """Conclude from the search, unless the study has a result of rounds and nobody asked for a conclusion."""
        asked, study = self._time_limit.wishes.conclude.is_set(), self._store.study(self._spec.name)
        if not asked and study is not None and (study.conclusion or {}).get("confirmed"):
            return self._ending, None
        conclusion = conclude(self._spec.goals, self._trials(), finalists, None)
        return RunEnding.DONE if asked else self._ending, self._stored(conclusion)

    def _fitting(self, finalists: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the reference and as many finalists as fixed rounds can measure before the time limit."""
        room = self._time_limit.room()
        count = len(finalists) if room is None else room // self._spec.confirmation.confirm_rounds
        return [*finalists[: max(FEWEST_ARMS, count)]]

    def _measured(self, contest: Contest) -> int:
        """Measure the rounds of a contest until it ends; return how many are complete.

        The last measurement of the first rounds may pass the time limit, because without it the run has no result.
        """
        done = 0
        while (step := contest.step(done)) is not None:
            time_is_up = self._time_limit.has_no_room if done else self._time_limit.is_over
            if step.forms:
                source = GivenTrials(self._optuna_study, TrialKind.REDUCED, step.forms)
                self._observer.stage(StagePlan(Stage.REDUCTION, len(source.planned), tuple(source.planned)))
                self._ending = self._loop.run(source, time_is_up)
            else:
                count = step.rounds
                confirmation = Confirmation(
                    self._spec, self._store, step.group, self._slots, contest.label, done, count
                )
                done += count if self._completed(confirmation, step.group, time_is_up) else 0
            if self._ending is not RunEnding.DONE:
                break
        return done

    def _nominated(self, count: int) -> list[TrialRecord]:
        """Return the best trials of the search, best first.

        Trials of an earlier reduction have no influence, so that a continued study has the same finalists.
        """
        reduced = {record.number for record in self._trials() if record.kind is TrialKind.REDUCED}
        return nominate(self._trials(), count, self._optuna_study.ranking(reduced), tuple(self._spec.engines))

    def ablate(self) -> RunEnding:
        """Measure the best configuration of the search with each of its flags reset to its default."""
        source = Ablation(self._spec, self._store, self._optuna_study, next(iter(self._nominated(1)), None))
        if source.planned:
            self._observer.stage(StagePlan(Stage.ABLATION, len(source.planned), tuple(source.planned)))
        return self._loop.run(source, self._time_limit.ends_search)

    def _can_confirm(self, finalists: Sequence[TrialRecord]) -> bool:
        """Return whether there are rounds and a finalist; without the defaults by choice, there are none."""
        confirmation = self._spec.confirmation
        has_reference = any(finalist.kind in REFERENCES for finalist in finalists)
        has_reference_or_failed = has_reference or bool(confirmation.baseline_repeats)
        return bool(confirmation.confirm_rounds) and len(finalists) > has_reference and has_reference_or_failed

    def _effects(self, conclusion: Conclusion, group: Sequence[TrialRecord]) -> tuple[FlagEffect, ...]:
        """Return the effects of those flags of the winner without which it was measured in the same rounds."""
        winner = next((record for record in group if record.number == conclusion.winner), None)
        if winner is None or winner.kind in REFERENCES:
            return ()
        out = {each.number for each in conclusion.finalists if each.disqualified is not None}
        without = without_one_flag(self._spec.space, [each for each in group if each.number not in out], winner)
        rounds = StudyRounds.concluded(self._spec.goals, self._trials(), conclusion.to_dict())
        return tuple(measured_effects(rounds, winner, without, self._spec.space.engine_defaults()))

    def _stored(self, conclusion: Conclusion) -> Conclusion:
        self._store.update_study(self._spec.name, conclusion=conclusion.to_dict())
        return conclusion

    def with_estimated_effects(self, conclusion: Conclusion) -> Conclusion:
        """Store and return a conclusion with the effects of all flags of the winner, which takes seconds."""
        names = {effect.name for effect in conclusion.flag_effects}
        estimated = [each for each in self._estimated_effects(conclusion) if each.name not in names]
        return self._stored(replace(conclusion, flag_effects=(*conclusion.flag_effects, *estimated)))

    def _estimated_effects(self, conclusion: Conclusion) -> list[FlagEffect]:
        """Return the effects of the winner's flags by the sampler's model; none where the reference won."""
        kinds = {record.number: record.kind for record in self._trials() if not record.round}
        defaults = next((number for number, kind in kinds.items() if kind is TrialKind.BASELINE), None)
        if conclusion.winner is None or defaults is None or kinds[conclusion.winner] in REFERENCES:
            return []
        try:
            return self._optuna_study.flag_effects(conclusion.winner, defaults)
        except (ArithmeticError, ValueError) as error:  # the measurements still count
            self._observer.note(f"flag effects cannot be estimated: {type(error).__name__}: {error}")
            return []


class NearestFinals(_Stages):
    """The stages where no configuration meets the SLOs; `run` returns why they ended, and the conclusion if any."""

    def run(self, conclusion: Conclusion) -> tuple[RunEnding, Conclusion | None]:
        """Measure the nearest configurations again; the conclusion is unchanged where there is none."""
        goals, confirmation = self._spec.goals, self._spec.confirmation
        group = self._beside_reference(nearest_trials(self._trials(), confirmation.finalists))
        if not group or not confirmation.confirm_rounds:
            return RunEnding.DONE, conclusion
        label = f"nearest {label_of(group)}"
        rounds = Confirmation(self._spec, self._store, group, self._slots, label, goals=without_slos(goals))
        if not self._completed(rounds, group, self._time_limit.is_over):
            if self._time_limit.wishes.conclude.is_set():
                return RunEnding.DONE, conclusion
            return self._ending, conclusion if self._ending is RunEnding.TIMEOUT else None
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
            ending = self._loop.run(source, self._time_limit.has_no_room)
        found = self._searched(label)
        if found is None or found.outcome is None or not found.outcome.succeeded:
            return ending, nearest
        capacity = found.outcome.metric("capacity")
        return ending, replace(nearest, rate=workload.rate, capacity=capacity, capacity_trial=found.number)

    def _searched(self, label: str) -> TrialRecord | None:
        """Return the finished search for the capacity with this name."""
        return next((r for r in self._trials() if r.label == label and not r.round and r.outcome is not None), None)


def _reason(nearest: Nearest) -> str:
    missed = [each.slo for each in nearest.slos if each.excess > 0]
    meets = f"it misses {', '.join(missed)}" if missed else "it misses an SLO in some rounds"
    return f"no configuration meets the SLOs in every round; trial {nearest.number} is the nearest: {meets}"
