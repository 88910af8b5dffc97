"""The effects of the winner's flags: from rounds beside itself without one flag, else as the model estimates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from search_spaces import ParameterValue, ResolvedSpace
from storage.records import TrialKind, TrialRecord
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.compare import Ratio
from tuner.study.conclusion.conclusion import Conclusion
from tuner.study.conclusion.reference import REFERENCES
from tuner.study.conclusion.rounds import Rounds


def measured_effects(
    rounds: Rounds, winner: TrialRecord, without: Mapping[str, TrialRecord], defaults: Mapping[str, ParameterValue]
) -> list[FlagEffect]:
    """Return the effect of each flag that was left out, the largest first; see `FlagEffect`.

    Every configuration of the rounds counts in the noise, so that a winner's only flag has the interval of its score.

    Args:
        rounds: the measurements of the winner and of the configurations without one flag.
        winner: the winner.
        without: by the flag's name, the configuration that lacks it. One that failed or missed an SLO in a round has no
            ratio, and is left out.
        defaults: the engine's values.

    Returns:
        The effects; none with a single round, which gives no interval.
    """
    numbers = [
        number for number in sorted({number for number, _ in rounds.cells}) if not rounds.disqualification(number)
    ]
    if winner.number not in numbers:
        return []
    scores, metrics = rounds.score_ratios(numbers, winner.number), rounds.metric_ratios(numbers, winner.number)
    effects = []
    for name, record in without.items():
        score = _inverse(scores[record.number]) if record.number in scores else None
        if score is not None and score.low is not None and score.high is not None:
            effects.append(
                FlagEffect(
                    name=name,
                    value=winner.config[name],
                    default=record.config.get(name, defaults.get(name)),
                    ratio=score.ratio,
                    low=score.low,
                    high=score.high,
                    metrics={each: 1.0 / ratio.ratio for each, ratio in metrics[record.number].items()},
                    needed=0.0,
                    trials=0,
                    rounds=len(rounds.numbers),
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


def _inverse(ratio: Ratio) -> Ratio:
    """Return the ratio the other way round."""
    low = None if ratio.high is None else 1.0 / ratio.high
    high = None if ratio.low is None else 1.0 / ratio.low
    return Ratio(1.0 / ratio.ratio, low, high, ratio.rounds)
