"""A service's study as lines: one for each change of its state, each stage and each trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.cli.output.progress import lines
from tuner.client.replies import StudyEvent
from tuner.results import text
from tuner.study.protocols import Stage, StagePlan

LINE_WIDTH = 140
_SEARCH = StagePlan(Stage.SEARCH, 0)


class WatchedStudy:
    """Turns the events of a study into lines, as `tuner optimize --plain` prints them.

    Attributes:
        simulated: whether its figures are predicted; None before its first run.
    """

    def __init__(self) -> None:
        self.simulated: bool | None = None
        self._plan = _SEARCH
        self._trials: set[int] = set()
        self._in_stage: set[tuple[int, int]] = set()

    def lines(self, event: StudyEvent) -> list[str]:
        """Return the lines of an event; none for one that says nothing new."""
        writers: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
            "queued": _queued,
            "started": lambda data: [f"runs on {', '.join(data['granted'])}"],
            "opened": self._opened,
            "stage": self._stage,
            "trial": self._trial,
            "trial_retried": _retried,
            "note": lambda data: [data["text"]],
            "requested": lambda data: [f"asked to {data['request']}"],
            "lost": lambda data: [f"the driver was lost: {data.get('reason', 'for an unknown reason')}"],
        }
        write = writers.get(event.kind)
        return [] if write is None else [text.one_line(line) for line in write(event.data)]

    def _opened(self, data: Mapping[str, Any]) -> list[str]:
        self.simulated = data["provenance"] == "simulated"
        engine = f"{data['engine']} {data['version']}"
        parts = [text.count(data["trials"], "trial"), text.count(data["workers"], "worker"), engine]
        line = f"study {data['study']}: {', '.join(parts)}"
        return [f"{text.BANNER}: {engine}", line] if self.simulated else [line]

    def _stage(self, data: Mapping[str, Any]) -> list[str]:
        self._plan = StagePlan(Stage(data["stage"]), data["trials"], tuple(data["subjects"]), tuple(data["rounds"]))
        self._in_stage = set()
        return [] if self._plan.stage is Stage.SEARCH else [lines.stage_line(self._plan)]

    def _trial(self, data: Mapping[str, Any]) -> list[str]:
        number, round_ = data["number"], data["round"]
        self._in_stage.add((number, round_))
        if not round_:
            self._trials.add(number)
        failure = data["failure"] and (data["failure"]["kind"], data["failure"]["message"])
        missed = [name for name, violation in data.get("constraints", {}).items() if violation > 0]
        trial = f"#{number} {'failed' if failure else data['state']}"
        line = f"[{self._count(round_)}] {lines.result_line(trial, failure, missed, data['score'], data['values'])}"
        label = None if round_ else data.get("label")
        return [lines.with_configuration(line, label, data["config"], {}, LINE_WIDTH)]

    def _count(self, round_: int) -> str:
        """Return how far the stage is: `3/12`, or `round 2 of 3`."""
        rounds = self._plan.rounds
        if round_ in rounds:
            return f"round {rounds.index(round_) + 1} of {len(rounds)}"
        done = len(self._trials) if self._plan.stage is Stage.SEARCH else len(self._in_stage)
        return f"{done}/{max(self._plan.trials, done)}"


def _queued(data: Mapping[str, Any]) -> list[str]:
    reason = data.get("reason")
    return [("queued again" if data.get("resumed") else "queued") + (f": {reason}" if reason else "")]


def _retried(data: Mapping[str, Any]) -> list[str]:
    name = text.title(data["number"], data["round"])
    return [f"{name} runs again: attempt {data['attempt']} failed, {data['kind']}: {data['message']}"]
