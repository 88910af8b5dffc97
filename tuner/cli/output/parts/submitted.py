"""Submitted studies: a table of several, and one in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from rich.console import RenderableType

from tuner.cli.output.parts.console import new_table, show
from tuner.client.replies import SubmittedStudy
from tuner.results import text

WIDTH = 140


def as_json(value: SubmittedStudy | Sequence[SubmittedStudy]) -> str:
    """Return studies as JSON, with the names and forms of the service's API."""
    plain = asdict(value) if isinstance(value, SubmittedStudy) else [asdict(each) for each in value]
    return json.dumps(plain, indent=1, default=lambda each: each.isoformat())


def print_table(studies: Sequence[SubmittedStudy]) -> None:
    """Print a line for each study."""
    table = new_table()
    for name in ("study", "owner", "state", "devices", "trials", "score", "submitted (UTC)", "why"):
        right = name in ("trials", "score")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "why")
    for study in studies:
        table.add_row(
            study.id,
            study.owner,
            study.state.value,
            _devices(study),
            *_progress(study),
            _time(study.created_at),
            why(study),
        )
    show(table, width=WIDTH)


def print_study(study: SubmittedStudy) -> None:
    """Print one study in full, a fact a line."""
    trials, score = _progress(study)
    facts = {
        "owner": study.owner + (", readable by all" if study.shared else ""),
        "state": study.state.value,
        "why": why(study),
        "devices": _devices(study) + (f": {', '.join(study.granted)}" if study.granted else ""),
        "priority": str(study.priority),
        "trials": trials,
        "best score": score,
        "device time": text.duration(study.gpu_seconds),
        "submitted": _time(study.created_at),
        "started": _time(study.started_at),
        "ended": _time(study.ended_at),
    }
    settings = {name: _short(value) for name, value in (study.settings or {}).items()}
    width = max(map(len, [*facts, *settings]))
    shown: list[RenderableType] = [study.id]
    shown += [f"  {name:<{width}}  {value}" for name, value in facts.items() if value not in ("", text.ABSENT)]
    shown += ["settings", *(f"  {name:<{width}}  {value}" for name, value in settings.items())] if settings else []
    show(*shown, width=WIDTH)


def why(study: SubmittedStudy) -> str:
    """Return why a study waits or ended; empty if there is nothing to say."""
    return text.one_line(study.waits_for or study.reason or "")


def _devices(study: SubmittedStudy) -> str:
    return f"{len(study.granted) or study.gpus} {study.kind}"


def _progress(study: SubmittedStudy) -> tuple[str, str]:
    if study.progress is None:
        return text.ABSENT, text.ABSENT
    found = study.progress
    trials = f"{found.trials}" + (f" + {found.rounds}" if found.rounds else "")
    return trials, text.ABSENT if found.score is None else f"{found.score:.3f}"


def _time(at: datetime | None) -> str:
    return text.ABSENT if at is None else f"{at:%Y-%m-%d %H:%M}"


def _short(value: object) -> str:
    return text.cut(json.dumps(value, ensure_ascii=False), 100)
