"""The texts over which two servers' token probabilities are compared."""

from __future__ import annotations

from pathlib import Path

from tuner.quality.harness import HarnessTask
from tuner.quality.task import Task

TASK_TEXTS = 32
"""How many questions of a task are texts, each with its right answer."""

_FILE = Path(__file__).with_name("texts.txt")


def built_in_texts() -> tuple[str, ...]:
    """Return the fixed texts of the tuner: prose, code, data, dialogue, numbers, three languages."""
    return tuple(_FILE.read_text(encoding="utf-8").strip().split("\n%\n"))


def texts_of(task: Task | HarnessTask | None) -> tuple[str, ...]:
    """Return the texts: the first questions of a file with their right answers, else the built-in texts."""
    if not isinstance(task, Task):
        return built_in_texts()
    return tuple(each.prompt + each.answer for each in task.questions[:TASK_TEXTS])
