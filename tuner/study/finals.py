"""The finals of a study: from the finalists of the search to the smallest configuration that is as good.

1. Rounds compare the finalists and the defaults.
2. If a finalist wins, rounds compare it with smaller forms of itself: without the flags that are predicted to bring
   nothing, and without all whose effect may be noise. Where both are worse, half of them is put back. As long as a
   smaller form wins, its own smaller forms are next.
3. Flags that remain are left out one by one in rounds of their own, which measure their effects, the largest expected
   one first. A flag without effect is dropped.

The finalist that won first takes part in all rounds, which all count: if it is no better than the defaults in them, the
defaults stay. Steps 2 and 3 need `reduce`, and end when the rounds have taken as many measurements as the search had
trials. Every step is planned from the stored trials, so that a continued study goes on where it stopped.

Where no configuration meets the SLOs, two other stages follow (`NearestFinals`):

1. Rounds compare the configurations that are nearest to meeting the SLOs, and the reference. Missing an SLO
   disqualifies none of them. One that meets all SLOs in every round wins after all.
2. The capacity of the nearest one is searched: the highest request rate at which all SLOs hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from records.measured import REFERENCES, reference_of
from records.trials import TrialKind, TrialRecord
from storage.store import Store
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.rounds import Rounds, StudyRounds
from tuner.study.alternatives import nearest_of, nearest_trials, without_slos
from tuner.study.conclusion import (
    Conclusion,
    Nearest,
    chosen_by_engine,
    defaults_of,
    measured_effects,
    with_earlier_winner,
    without_one_flag,
)
from tuner.study.confirmation import Confirmation, label_of, nominate
from tuner.study.decide import Compared, Preference, close_form, conclude, with_both_winners
from tuner.study.loop import Loop, TimeLimit
from tuner.study.optuna_study import OptunaStudy
from tuner.study.protocols import RunEnding, Stage, StagePlan, StudyObserver
from tuner.study.reduction import (
    Ablation,
    GivenConfiguration,
    GivenTrials,
    fits,
    measured_of,
    reductions,
    smaller_forms,
    unmeasured,
)
from tuner.study.specification.spec import StudySpec
from tuner.workloads.traffic import Traffic

WITHOUT_CONCLUSION = (
    RunEnding.INTERRUPTED,
    RunEnding.DEFAULTS_FAILED,
    RunEnding.SAME_FAILURE,
    RunEnding.INFRASTRUCTURE,
)
"""Endings of a stage after which nothing is concluded; the next run continues it."""

_FEW_FLAGS = 4
"""Up to this many flags, each is left out in turn; a winner with more flags gets smaller forms first."""

_FURTHER = 2
"""Most times that a close comparison gets further rounds."""

_GROUPS = 3
"""Most groups of smaller forms that the winner is compared with, one group after another."""


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

    def _completed(self, confirmation: Confirmation, group: Sequence[TrialRecord]) -> bool:
        """Measure the rounds of a group; return False if they are not complete."""
        if not confirmation.exhausted():
            names, rounds = tuple(f"#{record.number}" for record in group), tuple(confirmation.rounds)
            self._observer.stage(StagePlan(Stage.CONFIRMATION, len(names) * len(rounds), names, rounds))
        self._ending = self._loop.run(confirmation, lambda: not confirmation.exhausted() and self._time_limit.is_over())
        return self._ending is RunEnding.DONE


class Finals(_Stages):
    """The stages after the search; `run` returns why they ended, and the conclusion if there is one."""

    def run(self) -> tuple[RunEnding, Conclusion | None]:
        """Run every stage; the time limit ends the stages after the first rounds, not the conclusion."""
        finalists = self._beside_reference(self._nominated(self._spec.confirmation.finalists))
        if not self._can_confirm(finalists):
            return RunEnding.DONE, self._stored(conclude(self._spec.goals, self._trials(), finalists, None), finalists)
        first = self._confirm(finalists)
        if first is None and self._time_limit.wishes.conclude.is_set():
            return RunEnding.DONE, self._stored(conclude(self._spec.goals, self._trials(), finalists, None), finalists)
        if first is None:
            return self._ending, None
        final, effects = self._with_proof(first, *self._refine(first))
        if self._ending in WITHOUT_CONCLUSION:
            return self._ending, None
        effects = effects or self._effects(final)
        leader = None if first.winner is None else first.winner.number
        conclusion = with_earlier_winner(final.conclusion, leader, first.conclusion.rounds, final.group)
        return RunEnding.DONE, self._stored(conclusion, final.group, effects)

    def _nominated(self, count: int) -> list[TrialRecord]:
        """Return the best trials of the search, best first.

        Trials of an earlier reduction have no influence, so that a continued study has the same finalists.
        """
        return nominate(self._trials(), count, self._optuna_study.ranking(self._reduced()), tuple(self._spec.engines))

    def ablate(self) -> RunEnding:
        """Measure the best configuration of the search with each of its flags reset to its default."""
        source = Ablation(self._spec, self._store, self._optuna_study, next(iter(self._nominated(1)), None))
        if source.planned:
            self._observer.stage(StagePlan(Stage.ABLATION, len(source.planned), tuple(source.planned)))
        return self._loop.run(source, self._time_limit.ends_search)

    def _reduced(self, after: int = -1) -> set[int]:
        """Return the numbers of the reduced configurations above a number."""
        numbers = {record.number for record in self._trials() if record.kind is TrialKind.REDUCED}
        return {number for number in numbers if number > after}

    def _can_confirm(self, finalists: Sequence[TrialRecord]) -> bool:
        """Return whether there are rounds and a finalist; without the defaults by choice, there are none."""
        confirmation = self._spec.confirmation
        has_reference = any(finalist.kind in REFERENCES for finalist in finalists)
        has_reference_or_failed = has_reference or bool(confirmation.baseline_repeats)
        return bool(confirmation.confirm_rounds) and len(finalists) > has_reference and has_reference_or_failed

    def _measure(self, given: Sequence[GivenConfiguration]) -> None:
        """Measure those configurations once that no trial has."""
        source = GivenTrials(self._optuna_study, TrialKind.REDUCED, unmeasured(self._spec.space, given, self._trials()))
        if source.planned:
            self._observer.stage(StagePlan(Stage.REDUCTION, len(source.planned), tuple(source.planned)))
        self._ending = self._loop.run(source, self._time_limit.is_over)

    def _confirm(
        self, group: Sequence[TrialRecord], incumbent: int | None = None, *, provisional: bool = False
    ) -> Compared | None:
        """Measure a group in rounds and conclude from them; None if they are not complete.

        If the whole time limit passes before the last round begins, the next run continues them.
        """
        confirmation = Confirmation(self._spec, self._store, group, self._slots)
        if not self._completed(confirmation, group):
            return None
        preference = self._preference(group, incumbent, provisional)
        return self._concluded(group, confirmation.label, preference, confirmation.rounds[-1])

    def _preference(self, group: Sequence[TrialRecord], incumbent: int | None, provisional: bool) -> Preference:
        """Return what counts beside the rounds of a group: nothing without a reduction."""
        if not self._spec.confirmation.reduce:
            return Preference()
        flags = {record.number: len(self._spec.space.changed(record.config)) for record in group}
        return Preference(flags, self._optuna_study.predicted_scores(list(flags)), incumbent, provisional)

    def _concluded(self, group: Sequence[TrialRecord], label: str, preference: Preference, last: int) -> Compared:
        """Return the conclusion from the rounds with this label, and all others of the group up to the round `last`."""
        until_now = [record for record in self._trials() if record.round <= last]
        return Compared(tuple(group), conclude(self._spec.goals, until_now, group, label, preference), label, last)

    def _compare(self, before: Compared, given: Sequence[GivenConfiguration], best: TrialRecord) -> Compared | None:
        """Compare the winner, the best finalist and the defaults with smaller configurations.

        Return None if there is nothing to compare, or the time or the measurements are used up.
        """
        assert before.winner is not None
        group = with_both_winners(before, best, before.winner)
        if not given or not self._may_measure(group, given):
            return None
        self._measure(given)
        if self._ending is not RunEnding.DONE:
            return None
        size = len(group)
        group |= {
            record.number: record
            for record in measured_of(self._spec.space, self._trials(), given)
            if record.state == "ok"
        }
        if len(group) == size:
            return None
        return self._confirm(list(group.values()), before.winner.number, provisional=True)

    def _may_measure(
        self,
        group: Mapping[int, TrialRecord],
        given: Sequence[GivenConfiguration],
        label: str | None = None,
        reserve: int = 0,
    ) -> bool:
        """Return whether there are measurements left for a group and further configurations, see `fits`."""
        spec = self._spec
        return fits(spec.space, self._trials(), group, given, spec.confirmation.confirm_rounds, label, reserve)

    def _refine(self, first: Compared) -> tuple[Compared, list[FlagEffect]]:
        """Return the comparison whose winner has the fewest flags, and the measured effects of these."""
        best = first.winner
        if best is None or not self._spec.confirmation.reduce:
            return first, []
        compared = self._shrink(first, best)
        while (winner := compared.winner) is not None and self._ending is RunEnding.DONE:
            space, flags = self._spec.space, self._spec.space.changed(winner.config)
            if not flags or (len(flags) == 1 and space.is_reference(space.without(winner.config, flags[0]))):
                break
            given = self._without_each(compared, winner, best)
            smaller = self._compare(compared, list(given.values()), best)
            if smaller is None:
                break
            smaller = self._longer(smaller, best, winner)
            if smaller.winner is not None and smaller.winner.number == winner.number:
                return smaller, self._effects(smaller)
            if smaller.winner is not None and len(self._spec.space.changed(smaller.winner.config)) > len(flags):
                return smaller, []
            compared = smaller
        return compared, []

    def _with_proof(
        self, first: Compared, final: Compared, effects: list[FlagEffect]
    ) -> tuple[Compared, list[FlagEffect]]:
        """Return the comparison whose rounds prove that its winner is better than the defaults, and its effects.

        A smaller form whose rounds do not prove that yet is measured once more beside the finalist that won first. If
        they do not prove it then, that finalist is compared with the defaults again.
        """
        best, winner = first.winner, final.winner
        if best is None or winner is None or final is first or self._ending is not RunEnding.DONE:
            return final, effects
        preference = self._preference(final.group, winner.number, provisional=False)
        proved = self._concluded(final.group, final.label, preference, final.last)
        group = with_both_winners(final, best, winner)
        shown = proved.winner is not None and proved.winner.number == winner.number
        if not shown and len(group) == 3 and self._may_measure(group, []):
            proved = self._confirm(list(group.values()), winner.number) or proved
        kept = proved.winner is not None and proved.winner.number == winner.number
        return proved, effects if kept else []

    def _defaults(self, compared: Compared) -> int:
        """Return the number of the defaults from which the winner differs."""
        return defaults_of(self._trials(), compared.group[0], compared.winner)

    def _shrink(self, first: Compared, best: TrialRecord) -> Compared:
        """Return the comparison after groups of smaller forms, as long as one of them wins."""
        compared, space, cautious = first, self._spec.space, False
        for _ in range(_GROUPS):
            winner = compared.winner
            if winner is None:
                break
            chosen = chosen_by_engine(self._trials())
            redundant = [name for name in space.changed(winner.config) if winner.config[name] == chosen.get(name)]
            if len(space.changed(winner.config)) <= _FEW_FLAGS and not redundant:
                break
            later = self._reduced(after=max(record.number for record in compared.group))
            order = self._optuna_study.eliminate(winner.number, self._defaults(compared), later)
            forms = smaller_forms(space, winner, order, cautious=cautious, redundant=redundant)
            smaller = self._compare(compared, forms, best) if forms else compared
            if smaller is None:
                break
            smaller = self._longer(smaller, best, winner)
            stays = smaller.winner is not None and smaller.winner.number == winner.number
            if stays and cautious:
                return smaller
            compared, cautious = smaller, stays
        return compared

    def _longer(self, compared: Compared, best: TrialRecord, before: TrialRecord) -> Compared:
        """Return the comparison after further rounds of the best finalist and a smaller form, if that was close."""
        for _ in range(_FURTHER):
            form = close_form(self._spec.goals, self._trials(), compared, (best, before), self._spec.space)
            if form is None:
                break
            label = f"{compared.label} after round {compared.last}"
            single_flags = 3 + min(len(self._spec.space.changed(form.config)), _FEW_FLAGS)
            if not self._may_measure({best.number: best, form.number: form}, [], label, single_flags):
                break
            confirmation = Confirmation(self._spec, self._store, (best, form), self._slots, label)
            if not self._completed(confirmation, (best, form)):
                break
            rounds = Rounds.of(self._spec.goals, self._trials(), label)
            out = {record.number for record in (best, form) if rounds.disqualification(record.number) is not None}
            group = [record for record in compared.group if record.number not in out]
            preference = self._preference(group, before.number, provisional=True)
            compared = self._concluded(group, compared.label, preference, rounds.numbers[-1])
        return compared

    def _without_each(
        self, compared: Compared, winner: TrialRecord, best: TrialRecord
    ) -> dict[str, GivenConfiguration]:
        """Return the winner without each single flag, by name: as many as may be measured, large effects first."""
        found = {name: rest for name, *rest in reductions(self._spec.space, winner.config, [])}
        later = self._reduced(after=max(record.number for record in compared.group))
        order = self._optuna_study.eliminate(winner.number, self._defaults(compared), later)
        names = [step.name for step in reversed(order.steps) if step.name in found]
        names += [name for name in found if name not in names]
        given = {name: GivenConfiguration(f"#{winner.number} without {name}", *found[name]) for name in names}
        group = with_both_winners(compared, best, winner)
        counts = range(len(names), 0, -1)
        fitting = (count for count in counts if self._may_measure(group, list(given.values())[:count]))
        return {name: given[name] for name in names[: next(fitting, 0)]}

    def _effects(self, compared: Compared) -> list[FlagEffect]:
        """Return the effects of those flags of the winner without which it was measured in the same rounds."""
        if compared.winner is None:
            return []
        out = {each.number for each in compared.conclusion.finalists if each.disqualified is not None}
        group = [record for record in compared.group if record.number not in out]
        without = without_one_flag(self._spec.space, group, compared.winner)
        scored = [each for each in compared.conclusion.finalists if each.score is not None]
        rounds = StudyRounds(self._spec.goals, self._trials(), max(1, len(scored)))
        return measured_effects(rounds, compared.winner, without, self._spec.space.engine_defaults())

    def _stored(
        self, conclusion: Conclusion, group: Sequence[TrialRecord], measured: Sequence[FlagEffect] = ()
    ) -> Conclusion:
        """Store the conclusion, before and after the flag effects, whose estimates take seconds."""
        self._store.update_study(self._spec.name, conclusion=conclusion.to_dict())
        names = {effect.name for effect in measured}
        estimated = [each for each in self._estimated_effects(conclusion, group) if each.name not in names]
        conclusion = replace(conclusion, flag_effects=(*measured, *estimated))
        self._store.update_study(self._spec.name, conclusion=conclusion.to_dict())
        return conclusion

    def _estimated_effects(self, conclusion: Conclusion, group: Sequence[TrialRecord]) -> list[FlagEffect]:
        """Return the effects of the winner's flags by the sampler's model; none where the reference won."""
        kinds = {record.number: record.kind for record in group}
        defaults = next((r.number for r in self._trials() if r.kind is TrialKind.BASELINE and not r.round), None)
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
        rounds = Confirmation(self._spec, self._store, group, self._slots, label, without_slos(goals))
        if not self._completed(rounds, group):
            stopped = self._time_limit.wishes.conclude.is_set()
            return (RunEnding.DONE, conclusion) if stopped else (self._ending, None)
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
