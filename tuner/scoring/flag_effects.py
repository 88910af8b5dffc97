"""The flag effects of the winner as lines of text, for the header of the exported script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from records.trials import Provenance, TrialKind, TrialRecord

LIKELY = 0.5
"""Probability from which on a failure without a flag is reported."""

TOGETHER = "the share of each flag is not known yet"
"""Said where all flags together have an effect beyond the noise, and no single one has."""

WITHIN_NOISE = "the effect of each single flag is within the noise"


def has_effect(effect: Mapping[str, Any]) -> bool:
    """Return True if the interval of a flag effect excludes 1, or the configuration likely fails without the flag."""
    return bool(effect["low"] > 1 or effect["high"] < 1 or effect["needed"] >= LIKELY)


def effect_together(conclusion: Mapping[str, Any], records: Sequence[TrialRecord]) -> Mapping[str, Any] | None:
    """Return the ratio of the winner's score to that of the defaults: the effect of all its flags together.

    Returns:
        A ratio with `low`, `high` and `rounds` whose interval is above 1; None without such a ratio, and where the
        winner was compared with another configuration than the defaults.
    """
    kinds = {record.number: record.kind for record in records if not record.round}
    if kinds.get(conclusion.get("reference", -1)) is not TrialKind.BASELINE:
        return None
    number = conclusion.get("winner")
    scores = [each["score"] for each in conclusion.get("contenders", ()) if each["number"] == number and each["score"]]
    found: Mapping[str, Any] | None = next(iter(scores), None)
    return found if found is not None and found["low"] is not None and found["low"] > 1 else None


def flag_effect_lines(
    effects: Sequence[Mapping[str, Any]],
    records: Sequence[TrialRecord],
    together: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return a title, a line for each flag with a measurable effect, and a line with the other flags.

    The effect of all flags together is shown where no single flag has a measurable one.
    """
    if not effects:
        return []
    measurable = [each for each in effects if has_effect(each)]
    others = ", ".join(f"{each['name']}={_shown(each['value'])}" for each in effects if each not in measurable)
    simulated = any(r.outcome is not None and r.outcome.provenance is Provenance.SIMULATED for r in records)
    basis = f"each reset to its default, {effects_basis(effects, simulated=simulated)}, 95 % confidence intervals"
    if not measurable and together is not None:
        ratio = f"score ×{together['ratio']:.2f} [{together['low']:.2f}, {together['high']:.2f}]"
        return [f"{others} together: {ratio}, in {together['rounds']} rounds; {TOGETHER} ({basis})"]
    if not measurable:
        return [f"{WITHIN_NOISE} ({basis}): {others}"]
    lines = [f"flag effects ({basis}):", *(f"  {_line(each)}" for each in measurable)]
    return [*lines, f"  no measurable effect: {others}"] if others else lines


def _shown(value: object) -> str:
    """Return a value of a flag; a fraction without the digits of its binary rounding, `0.88` for 0.8799999999999999."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _line(effect: Mapping[str, Any]) -> str:
    """Return `speculative=suffix: score ×1.50 [1.40, 1.60] (…), default off`, and the risk without the flag."""
    default = "unset" if effect["default"] is None else effect["default"]
    ratio = f"score ×{effect['ratio']:.2f} [{effect['low']:.2f}, {effect['high']:.2f}]"
    metrics = ", ".join(f"{name} ×{value:.2f}" for name, value in effect["metrics"].items())
    risk = f"; {100 * effect['needed']:.0f} % risk of a failure or a missed SLO without it"
    return (
        f"{effect['name']}={_shown(effect['value'])}: {ratio} ({metrics}), default {default}"
        f"{risk if effect['needed'] >= LIKELY else ''}"
    )


def effects_basis(effects: Sequence[Mapping[str, Any]], *, simulated: bool) -> str:
    """Return the source of flag effects: `measured in 3 rounds`, or `estimated from 57 measured trials`, or both."""
    kind = "simulated" if simulated else "measured"
    rounds = [each["name"] for each in effects if each.get("rounds")]
    count = max((each.get("rounds", 0) for each in effects), default=0)
    in_rounds = f"{kind} in {count} rounds"
    if len(rounds) == len(effects):
        return in_rounds
    estimated = f"estimated from {max(each['trials'] for each in effects)} {kind} trials"
    return f"{', '.join(rounds)} {in_rounds}, the others {estimated}" if rounds else estimated
