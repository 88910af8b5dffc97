"""The effects of the winner's flags: from rounds beside itself without one flag, else as the model estimates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from search_spaces import ParameterValue, ResolvedSpace
from storage.measured import REFERENCES
from storage.records import TrialKind, TrialRecord
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.rounds import StudyRounds
from tuner.study.conclusion.conclusion import Conclusion


def measured_effects(
    rounds: StudyRounds,
    winner: TrialRecord,
    without: Mapping[str, TrialRecord],
    defaults: Mapping[str, ParameterValue],
) -> list[FlagEffect]:
    """Return the effect of each flag that was left out, the largest first; see `FlagEffect`.

    Args:
        rounds: of the study.
        winner: the winner.
        without: by the flag's name, the configuration that lacks it, of those that failed and missed an SLO in no
            round.
        defaults: the engine's values.

    Returns:
        The effects; none with a single round, which gives no interval.
    """
    effects = []
    for name, record in without.items():
        score = rounds.score(winner.number, record.number)
        if score is not None and score.low is not None and score.high is not None:
            objectives = [objective.metric for objective in rounds.goals.objectives]
            ratios = {metric: rounds.metric(metric, winner.number, record.number) for metric in objectives}
            effects.append(
                FlagEffect(
                    name=name,
                    value=winner.config[name],
                    default=record.config.get(name, defaults.get(name)),
                    ratio=score.ratio,
                    low=score.low,
                    high=score.high,
                    metrics={metric: ratio.ratio for metric, ratio in ratios.items() if ratio is not None},
                    needed=0.0,
                    trials=0,
                    rounds=score.rounds,
                )
            )
    return sorted(effects, key=lambda effect: (-effect.ratio, effect.name))


def without_one_flag(space: ResolvedSpace, group: Sequence[TrialRecord], winner: TrialRecord) -> dict[str, TrialRecord]:
    """Return the configurations of a group that are the winner without one flag, by the flag's name.

    For a winner with a single flag these are the defaults of its engine.
    """
    found = {}
    for name in space.changed(winner.config):
        rest = space.without(winner.config, name)
        record = next((each for each in group if space.same_server(each.config, rest)), None)
        if record is not None:
            found[name] = record
    return found


class FlagEffectModel(Protocol):
    """Estimates the effects of a trial's flags, see `OptunaStudy.flag_effects`."""

    def flag_effects(self, number: int, defaults: int) -> list[FlagEffect]:
        """Return the effects of the flags of the trial `number` relative to the trial `defaults`."""


def estimated_effects(
    model: FlagEffectModel,
    conclusion: Conclusion,
    group: Sequence[TrialRecord],
    trials: Sequence[TrialRecord],
    note: Callable[[str], None],
) -> list[FlagEffect]:
    """Return the effects of the winner's flags as the model estimates them; none where the reference won.

    Args:
        model: of the trials.
        conclusion: of the study.
        group: the trials of the last rounds.
        trials: all of the study.
        note: receives one line if there is no estimate; the measurements still count then.
    """
    kinds = {record.number: record.kind for record in group}
    defaults = next((r.number for r in trials if r.kind is TrialKind.BASELINE and not r.round), None)
    if conclusion.winner is None or defaults is None or kinds[conclusion.winner] in REFERENCES:
        return []
    try:
        return model.flag_effects(conclusion.winner, defaults)
    except (ArithmeticError, ValueError) as error:
        note(f"flag effects cannot be estimated: {type(error).__name__}: {error}")
        return []
