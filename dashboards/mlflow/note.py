"""The study in words, as the description of its parent run in MLflow's UI: who won, by how much, what its flags earn.

Markdown, made from the study's conclusion alone (`Conclusion.to_dict` in `tuner.study.conclusion.decide`); a conclusion
of an older version lacks what came later, and so does its description.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.records import Provenance, StudyRecord

NOTE_TAG = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""

_KEPT = "\N{NO-BREAK SPACE}"


def note_of(study: StudyRecord) -> str | None:
    """Return the description of a study that is concluded; None before that."""
    conclusion = study.conclusion or {}
    if not conclusion.get("reason"):
        return None
    parts = [f"**{_plain(conclusion['reason'])}**"]
    if study.provenance is Provenance.SIMULATED:
        parts.insert(0, "Predicted, not measured: every figure is a simulation's.")
    parts += _finalists(conclusion.get("contenders", ()))
    parts += _flags(conclusion.get("winner"), study.flag_effects)
    return "\n\n".join(parts)


def _finalists(contenders: Sequence[Mapping[str, Any]]) -> list[str]:
    if not contenders:
        return []
    metrics = list(dict.fromkeys(name for contender in contenders for name in contender["metrics"]))
    rows = [
        [
            f"#{contender['number']}",
            _interval(contender["score"]),
            *(_interval(contender["metrics"].get(name)) for name in metrics),
            _plain(contender["disqualified"] or ""),
        ]
        for contender in contenders
    ]
    return ["Finalists, their ratio to the defaults [95 % interval]:", _table(["", "score", *metrics, "out"], rows)]


def _flags(winner: int | None, earned: Sequence[Mapping[str, Any]]) -> list[str]:
    if not earned:
        return []
    metrics = list(earned[0]["metrics"])
    rows = [
        [
            _code(f"{each['name']}={each['value']}"),
            _code("unset" if each["default"] is None else each["default"]),
            _interval(each, 2),
            *(f"{each['metrics'][name]:.2f}" for name in metrics),
            f"{100 * each['needed']:.0f} %",
        ]
        for each in earned
    ]
    title = (
        f"What each flag of #{winner} earns: its figures over those with the flag alone put back, estimated from "
        f"{earned[0]['trials']} trials [95 % interval]; needed: how likely it is that without it the server fails or "
        "an SLO is missed."
    )
    return [title, _table(["flag", "default", "score", *metrics, "needed"], rows)]


def _interval(ratio: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Return a ratio and its interval with spaces at which no cell is broken."""
    if ratio is None:
        return "–"
    if ratio["low"] is None or ratio["high"] is None:
        return f"{ratio['ratio']:.{digits}f}"
    return f"{ratio['ratio']:.{digits}f}{_KEPT}[{ratio['low']:.{digits}f},{_KEPT}{ratio['high']:.{digits}f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Return text that Markdown leaves as it is, on one line."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in " ".join(text.split()))


def _code(value: object) -> str:
    """Return a value as code within a table's cell."""
    return f"`{' '.join(str(value).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
