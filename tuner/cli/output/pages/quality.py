"""The output of `tuner quality`."""

from __future__ import annotations

import json
from typing import Any

from tuner.use_cases.answers.quality import QualityReport


def report(result: QualityReport, *, as_json: bool) -> None:
    """Print the comparison."""
    if as_json:
        print(json.dumps(document(result), indent=1))
        return
    tripwire, pairs = result.quality.tripwire, result.quality.pairs
    print(f"candidate  {result.candidate.model.name} {' '.join(result.candidate.argv)}".rstrip())
    print(f"reference  {result.reference.model.name} {' '.join(result.reference.argv)}".rstrip())
    print(
        f"tokens     {100 * tripwire.agreement:.1f} % of {tripwire.positions:,} most likely tokens agree, "
        f"mean KL divergence {tripwire.kl:.4f} nats" + (": broken" if tripwire.broken else "")
    )
    if pairs is None:
        print("answers    not compared: give --quality-task FILE with questions and right answers")
    else:
        low, high = pairs.interval
        print(
            f"answers    {100 * pairs.candidate:.1f} % of {pairs.questions:,} right, reference "
            f"{100 * pairs.reference:.1f} %; {pairs.lost} lost, {pairs.gained} gained\n"
            f"quality    {pairs.quality:.3f} (95 % interval {low:.3f} to {high:.3f}), {result.slo}: "
            f"{pairs.verdict(result.slo.threshold)}"
        )
    print(f"time       {result.quality.seconds[0]:.0f} s candidate, {result.quality.seconds[1]:.0f} s reference, once")


def document(result: QualityReport) -> dict[str, Any]:
    """Return the comparison as plain JSON."""
    tripwire, pairs = result.quality.tripwire, result.quality.pairs
    answers = None
    if pairs is not None:
        answers = {
            "questions": pairs.questions,
            "reference": pairs.reference,
            "candidate": pairs.candidate,
            "lost": pairs.lost,
            "gained": pairs.gained,
            "quality": pairs.quality,
            "interval": list(pairs.interval),
            "verdict": pairs.verdict(result.slo.threshold).value,
        }
    return {
        "model": result.candidate.model.name,
        "reference": result.reference.model.name,
        "flags": list(result.candidate.argv),
        "positions": tripwire.positions,
        "agreement": tripwire.agreement,
        "kl": tripwire.kl,
        "broken": tripwire.broken,
        "slo": str(result.slo),
        "answers": answers,
        "seconds": {"candidate": result.quality.seconds[0], "reference": result.quality.seconds[1]},
    }
