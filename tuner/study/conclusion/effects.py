"""The measured effects of the winner's flags: the winner against itself without one flag, in the same rounds."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces import ParameterValue
from storage.records import TrialRecord
from tuner.sampler.flag_effects import FlagEffect
from tuner.scoring.compare import Ratio
from tuner.study.conclusion.rounds import Rounds


def measured_effects(
    rounds: Rounds, winner: TrialRecord, without: Mapping[str, TrialRecord], defaults: Mapping[str, ParameterValue]
) -> list[FlagEffect]:
    """Return the effect of each flag that was left out, the largest first; see `FlagEffect`.

    Args:
        rounds: the measurements of the winner and of the configurations without one flag.
        winner: the winner.
        without: by the flag's name, the configuration that lacks it. One that failed or missed an SLO in a round has no
            ratio, and is left out.
        defaults: the engine's values.

    Returns:
        The effects; none with a single round, which gives no interval.
    """
    remaining = [each.number for each in without.values() if rounds.disqualification(each.number) is None]
    numbers = [winner.number, *remaining]
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


def _inverse(ratio: Ratio) -> Ratio:
    """Return the ratio the other way round."""
    low = None if ratio.high is None else 1.0 / ratio.high
    high = None if ratio.low is None else 1.0 / ratio.low
    return Ratio(1.0 / ratio.ratio, low, high, ratio.rounds)
