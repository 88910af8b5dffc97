"""The description of a study's parent run in MLflow's UI, in Markdown: the verdict, the finalists, the flag effects.

Its source is the study's conclusion (`Conclusion.to_dict` in `tuner.study.conclusion.conclusion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.records import Provenance, StudyRecord

NOTE_TAG = "mlflow.note.content"
"""The tag that MLflow shows as a run's description."""

_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def note_of(study: StudyRecord) -> str | None:
    """Return the description of a study that has a conclusion; None for one without."""
    conclusion = study.conclusion or {}
    if not conclusion.get("reason"):
        return None
    parts = [f"**{escaped(conclusion['reason'])}**"]
    if study.provenance is Provenance.SIMULATED:
        parts.insert(0, "Simulated, not measured: every number is a prediction of the simulator.")
    parts += _finalists(conclusion.get("contenders", ()))
    parts += _flag_effects(conclusion.get("winner"), study.flag_effects)
    if lines := conclusion.get("would_help"):
        parts += [
            "What would help, but the study's settings exclude it (predicted):",
            "\n".join(f"- {escaped(each)}" for each in lines),
        ]
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
            escaped(contender["disqualified"] or ""),
        ]
        for contender in contenders
    ]
    return [
        "Finalists relative to the defaults, as ratios [95 % confidence interval]; 1 means equal:",
        _table(["", "score", *metrics, "disqualified"], rows),
    ]


def _flag_effects(winner: int | None, effects: Sequence[Mapping[str, Any]]) -> list[str]:
    if not effects:
        return []
    metrics = list(effects[0]["metrics"])
    rows = [
        [
            _code(f"{each['name']}={each['value']}"),
            _code("unset" if each["default"] is None else each["default"]),
            _interval(each, 2),
            *(f"{each['metrics'][name]:.2f}" for name in metrics),
            f"{100 * each['needed']:.0f} %",
        ]
        for each in effects
    ]
    title = (
        f"Flag effects of #{winner}: each value with the flag relative to the value with the flag reset to its "
        f"default, estimated from {effects[0]['trials']} trials [95 % confidence interval]. Failure risk: the "
        "probability that the server fails or misses an SLO with the flag reset to its default."
    )
    return [title, _table(["flag", "default", "score", *metrics, "failure risk"], rows)]


def _interval(ratio: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Return a ratio and its interval, with no-break spaces so that a cell stays on one line."""
    if ratio is None:
        return "–"
    if ratio["low"] is None or ratio["high"] is None:
        return f"{ratio['ratio']:.{digits}f}"
    text = f"{ratio['ratio']:.{digits}f} [{ratio['low']:.{digits}f}, {ratio['high']:.{digits}f}]"
    return text.replace(" ", _NO_BREAK_SPACE)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def escaped(text: str) -> str:
    """Return text on one line, with Markdown's special characters escaped."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in " ".join(text.split()))


def _code(value: object) -> str:
    """Return a value as inline code for a table cell."""
    return f"`{' '.join(str(value).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
