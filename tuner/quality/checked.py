"""The results of `tuner quality --study`, which a study keeps, and the lines about them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from search_spaces import ENGINE
from storage.records import StudyRecord, TrialRecord
from tuner.quality.examiner import Quality
from tuner.quality.formats import formats_of
from tuner.scoring.slo import Slo

CHECKED = "checked_answers"
"""Name of the study's fact: results of `fact_of`, by the `formats_of` of a server."""


def fact_of(quality: Quality, slo: Slo) -> dict[str, Any]:
    """Return a comparison as plain JSON."""
    pairs, tripwire = quality.pairs, quality.tripwire
    found: dict[str, Any] = {"agreement": tripwire.agreement, "kl": tripwire.kl, "broken": tripwire.broken}
    if pairs is not None:
        found |= {"slo": str(slo), "verdict": pairs.verdict(slo.threshold).value, "questions": pairs.questions}
        found |= {"quality": pairs.quality, "interval": list(pairs.interval)}
    return found


def line_of(fact: Mapping[str, Any], names: str) -> str:
    """Return the result in one line.

    Args:
        fact: from `fact_of`.
        names: the choices that may change the answers.
    """
    tokens = f"{100 * fact['agreement']:.1f} % of the most likely tokens agree, mean KL {fact['kl']:.4f} nats"
    if fact["broken"]:
        return f"BROKEN with {names}: {tokens}"
    if "quality" not in fact:
        return f"compared without questions: with {names}, {tokens}"
    low, high = fact["interval"]
    verdict = fact["verdict"] if fact["verdict"] == "kept" else fact["verdict"].upper()
    shown = f"quality {fact['quality']:.3f} (95 % interval {low:.3f} to {high:.3f}), {fact['questions']} questions"
    return f"{verdict} for {fact['slo']} with {names}: {shown}; {tokens}"


def changed_answers(study: StudyRecord, trial: TrialRecord) -> list[str]:
    """Return the choices of a trial that may change the answers, as `name=value`."""
    parts = study.premise.get("engines", {})
    engine = str(trial.config.get(ENGINE) or next(iter(parts), ""))
    source = parts[engine]["space"] if engine in parts else study.premise.get("space", {}).get("source", {})
    declared, prefix = source.get("parameters", {}), f"{engine}." if parts else ""
    return [
        f"{name}={value}"
        for name, value in trial.config.items()
        if value is not None and declared.get(name.removeprefix(prefix), {}).get("changes_answers")
    ]


def checked_answers(study: StudyRecord, trial: TrialRecord) -> Mapping[str, Any] | None:
    """Return the result for a trial's server; None if its answers were not compared."""
    outcome, facts = trial.outcome, study.facts.get(CHECKED, {})
    if outcome is None or not facts or "serve" not in outcome.argv:
        return None
    start = outcome.argv.index("serve")
    return dict(facts).get(formats_of(outcome.argv[start + 1], outcome.argv[start + 2 :], outcome.environment))


def is_checked(study: StudyRecord, trial: TrialRecord) -> bool:
    """Return whether the answers of a trial's server were compared, by the study or after it."""
    known = trial.outcome is not None and trial.outcome.metric("quality") is not None
    return known or checked_answers(study, trial) is not None


def check_command(study: StudyRecord, trial: TrialRecord) -> str:
    """Return the command that compares the answers of a trial with those of the unquantized model."""
    number = "" if (study.conclusion or {}).get("winner") == trial.number else f" --trial {trial.number}"
    return f"tuner quality --study {shlex.quote(study.name)}{number}"
