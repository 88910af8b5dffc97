"""Progress on the terminal: a live view, or plain lines where the output is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from storage.records import Failure, Provenance, TrialKind, TrialRecord
from tuner.cli.output import text
from tuner.executors.base import WorkerState
from tuner.scoring.objectives import Objective
from tuner.specs import TrialSpec
from tuner.study.protocols import StudyStart

if TYPE_CHECKING:
    from rich.console import RenderableType


class Progress:
    """What both views count: trials, failures by type, the best so far, the time that is left."""

    def __init__(self, objectives: Sequence[Objective], trials: int, known: Sequence[TrialRecord]) -> None:
        self.objectives = objectives
        self.trials = trials
        self.began = time.monotonic()
        self.done = 0
        self.failures: dict[str, int] = {}
        self.best: TrialRecord | None = None
        self._walls: list[float] = []
        for record in known:
            self.add(record, timed=False)

    def add(self, record: TrialRecord, timed: bool = True) -> None:
        """Count a finished trial; rounds of the finalists only tell how long a trial takes."""
        outcome = record.outcome
        if outcome is None:
            return
        if timed:
            self._walls.append((outcome.ended_at - outcome.started_at).total_seconds())
        if record.round:
            return
        self.done += 1
        if outcome.failure is not None:
            kind = outcome.failure.kind.value
            self.failures[kind] = self.failures.get(kind, 0) + 1
        if record.state == "ok" and _score(record) > (_score(self.best) if self.best else 0.0):
            self.best = record

    def eta_s(self, slots: int) -> float | None:
        """Return the seconds until the search is over, from the mean trial so far; None before there is one."""
        if not self._walls:
            return None
        left = max(self.trials - self.done, 0)
        return left * (sum(self._walls) / len(self._walls)) / max(slots, 1)

    def headline(self, slots: int) -> str:
        """Return trials, elapsed, ETA, the best so far and failures by type on one line."""
        eta = self.eta_s(slots)
        parts = [
            f"{self.done}/{max(self.trials, self.done)} trials",
            f"elapsed {text.duration(time.monotonic() - self.began)}",
            f"ETA {text.duration(eta)}" if eta is not None else "ETA –",
        ]
        if self.best is not None and self.best.outcome is not None:
            first = self.objectives[0].metric
            value = text.metric(first, self.best.outcome.metric(first))
            parts.append(f"best #{self.best.number} score {_score(self.best):.3f} ({value})")
        if self.failures:
            parts.append("failed: " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.failures.items())))
        return " | ".join(parts)


def _score(record: TrialRecord) -> float:
    return record.verdict.score or 0.0 if record.verdict else 0.0


class PlainConsole:
    """One line an event, on standard error; see `Listener`."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._progress = Progress((), 0, ())
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._slots = 1

    def opened(self, start: StudyStart) -> None:
        """Write what will run."""
        self._progress = Progress(start.spec.judge.objectives, start.budget.trials, start.records)
        for line in opening_lines(start, self._progress.done):
            self.note(line)

    def started(self, spec: TrialSpec, slot: int) -> None:
        """Say that a trial starts."""
        again = f" (attempt {spec.attempt})" if spec.attempt > 1 else ""
        named = "defaults" if spec.kind is TrialKind.BASELINE else text.config(spec.config)
        self._write(f"{text.title(spec.number, spec.round)} starts on w{slot}{again}: {named}")

    def finished(self, record: TrialRecord) -> None:
        """Say what came of a trial, and where the study stands."""
        self._progress.add(record)
        self._write(text.trial_line(record, self._progress.objectives))
        self._write("  " + self._progress.headline(self._slots))

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        """Say that a trial will be run again, and why."""
        name = text.title(spec.number, spec.round)
        self._write(f"{name} will be run again: {failure.kind.value}: {failure.message}")

    def note(self, text: str) -> None:
        """Write the line."""
        self._write(text)

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Remember how many workers there are."""
        self._slots = len(states)

    def close(self) -> None:
        """Nothing to close."""


class LiveConsole(PlainConsole):
    """The same lines, above a view that is redrawn: the headline and what each worker is doing."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        super().__init__(lambda line: self._console.print(line, markup=False, soft_wrap=True))
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def opened(self, start: StudyStart) -> None:
        """Begin the view."""
        self._live.start()
        super().opened(start)

    def tick(self, states: Sequence[WorkerState]) -> None:
        """Redraw the view."""
        super().tick(states)
        self._live.update(self._view(states))

    def _view(self, states: Sequence[WorkerState]) -> RenderableType:
        from rich.text import Text

        lines = [Text(self._progress.headline(len(states)), style="bold")]
        for state in states:
            if state.trial is None:
                doing = "idle"
            else:
                phase = state.phase.value if state.phase else "starting"
                doing = f"#{state.trial}  {phase}  {text.duration(state.seconds)}"
            lines.append(Text(f"  w{state.slot}  {state.device}  {doing}"))
        return Text("\n").join(lines)

    def close(self) -> None:
        """Take the view down."""
        self._live.stop()


def console(plain: bool) -> PlainConsole:
    """Return the live view on a terminal, plain lines elsewhere or if `plain`."""
    return PlainConsole() if plain or not sys.stderr.isatty() else LiveConsole()


def opening_lines(start: StudyStart, done: int) -> list[str]:
    """Return what is written before the first trial: the engine, the budget, what the search sends."""
    spec, engine = start.spec, start.engine
    banner = []
    if engine.provenance is Provenance.SIMULATED:
        card = spec.facts["hardware"]
        banner = [
            f"SIMULATED: predicted, not measured, for vLLM {engine.version} on one {card}; --engine vllm measures"
        ]
    goes_on = f", {done} of them done" if done else ""
    short = spec.search_prompts
    rounds = ", the rounds that decide all of them" if spec.confirm_rounds else ""
    loads = [f"the search sends {short} requests a load{rounds}"] if short else []
    dropped = f"; {len(spec.space.dropped)} choices ruled out (`tuner space`)" if spec.space.dropped else ""
    return [
        *banner,
        f"study {spec.name}: {start.budget.trials} trials{goes_on}, {start.workers} worker(s), {engine.name} "
        f"{engine.version}, {len(spec.space.parameters)} parameters{dropped}",
        *loads,
    ]
