"""What each flag of the winner earns, as people read it: on the screen and in the script's header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.records import Provenance, TrialRecord

LIKELY = 0.5


def flag_effect_lines(earned: Sequence[Mapping[str, Any]], records: Sequence[TrialRecord]) -> list[str]:
    """Return a title and a line for each parameter that earns or costs something, and the names of the others.

    Args:
        earned: plain `tuner.sampler.flag_effects.Earned`, most first; none gives no lines.
        records: every trial of the study.
    """
    if not earned:
        return []
    known = [each for each in earned if each["low"] > 1 or each["high"] < 1 or each["needed"] >= LIKELY]
    others = ", ".join(f"{each['name']}={each['value']}" for each in earned if each not in known)
    basis = f"each put back alone, {estimated_from(earned, records)}"
    if not known:
        return [f"none of its flags is known to earn anything, {basis}: {others}"]
    lines = [f"what its flags earn, {basis}:", *(f"  {flag_line(each)}" for each in known)]
    return [*lines, f"  not known to earn anything: {others}"] if others else lines


def flag_line(each: Mapping[str, Any]) -> str:
    """Return `speculative=suffix ×1.5 of the score [1.4, 1.6] (…), default: off`, and the risk of going without it."""
    default = "unset" if each["default"] is None else each["default"]
    ratio = f"×{each['ratio']:.2f} of the score [{each['low']:.2f}, {each['high']:.2f}]"
    ratio += f" ({', '.join(f'{name} ×{value:.2f}' for name, value in each['metrics'].items())})"
    risk = (
        f"; without it {100 * each['needed']:.0f} % likely to fail or to miss an SLO"
        if each["needed"] >= LIKELY
        else ""
    )
    return f"{each['name']}={each['value']} {ratio}, default: {default}{risk}"


def estimated_from(earned: Sequence[Mapping[str, Any]], records: Sequence[TrialRecord]) -> str:
    """Return what the estimates rest on: `estimated from 57 measured trials (95 % intervals)`."""
    simulated = any(r.outcome is not None and r.outcome.provenance is Provenance.SIMULATED for r in records)
    return f"estimated from {earned[0]['trials']} {'simulated' if simulated else 'measured'} trials (95 % intervals)"
