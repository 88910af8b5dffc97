"""The views of a running study: live on a terminal, else one line a trial."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from records.trials import Failure, TrialKind, TrialRecord
from tuner.cli.arguments import command
from tuner.cli.output.parts import fill_trials, say
from tuner.cli.output.progress import lines
from tuner.cli.output.progress.lines import opening_lines
from tuner.cli.output.progress.state import Progress
from tuner.executors.base import WorkerState
from tuner.results import text
from tuner.results.text import short_configuration
from tuner.specs import TrialSpec
from tuner.study.protocols import Stage, StagePlan, StudyObserver, StudyStart, SyncStatus

REDRAWS_PER_S = 4
_LABEL = 9
"""Columns of the labels at the left edge."""

_GAP = 2
_SHORTEST_BAR, _LONGEST_BAR = 8, 60
_FIXED_LINES = 13
"""Lines of the view beside its trials and workers."""


class View(StudyObserver):
    """Keeps the progress of a study, and shows each note and each retry as a line."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    @property
    def progress(self) -> Progress:
        """What is known of the study; only between `opened` and the end."""
        assert self._progress is not None
        return self._progress

    def opened(self, start: StudyStart) -> None:
        self._progress = Progress(start)
        for line in opening_lines(start, self._progress.done):
            self.note(line)

    def stage(self, plan: StagePlan) -> None:
        self.progress.stage(plan)

    def started(self, spec: TrialSpec, slot: int) -> None:
        self.progress.started(spec)

    def finished(self, record: TrialRecord) -> None:
        self.progress.finished(record)

    def retried(self, spec: TrialSpec, failure: Failure) -> None:
        self.note(lines.retry_line(spec.number, spec.round, spec.attempt, failure.kind.value, failure.message))

    def tick(self, states: Sequence[WorkerState]) -> None:
        self.progress.workers = states

    def synced(self, status: SyncStatus) -> None:
        self.progress.mlflow = status

    def close(self) -> None:
        """Take the view off the terminal."""


class LiveView(View):
    """Draws the study's state on standard error, below its notes."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console,
            refresh_per_second=REDRAWS_PER_S,
            transient=True,
            get_renderable=self._picture,
            vertical_overflow="crop",
        )

    def _picture(self) -> RenderableType:
        if self._progress is None:
            return Text("")
        return picture(self._progress, self._console.width, self._console.height)

    def opened(self, start: StudyStart) -> None:
        super().opened(start)
        self.note("")
        self._live.start()

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    def close(self) -> None:
        self._live.stop()


def picture(progress: Progress, width: int, height: int) -> RenderableType:
    """Return the view for a terminal of that many columns and lines."""
    if progress.mlflow is not None and progress.mlflow.waiting:
        return Group(_header(progress), *_waiting(progress.mlflow, progress.spec.name, width))
    workers = [] if progress.simulated else _workers(progress)
    room = max(height - _FIXED_LINES - len(workers), 2)
    parts: list[RenderableType] = [_header(progress), _bar(progress, width), _times(progress), Text("")]
    parts += [*_best(progress, width), _last_trials(progress, width, room)]
    return Group(*parts, *workers, *_footer(progress, width))


def _labelled(label: str, value: Text | str, style: str = "") -> Text:
    line = Text(no_wrap=True, overflow="ellipsis").append(f"{label:<{_LABEL}}", style="dim")
    return line.append_text(value if isinstance(value, Text) else Text(value, style=style))


def _header(progress: Progress) -> Text:
    spec = progress.spec
    line = Text(spec.name, style="bold", no_wrap=True, overflow="ellipsis")
    line.append(f"  {spec.model.name} on {spec.facts.get('hardware', 'unknown hardware')}", style="not bold")
    if progress.simulated:
        line.append("  SIMULATED", style="not bold yellow")
    return line


def _bar(progress: Progress, width: int) -> RenderableType:
    """Return the stage, its bar, and how much is done and left, on one line."""
    plan = progress.plan
    name = ", ".join(filter(None, (plan.stage.value, progress.text_of_round(progress.round))))
    noun = "measured" if plan.stage is Stage.CONFIRMATION else "trials"
    done = f"{progress.stage_done} of {progress.stage_trials} {noun}"
    remaining = progress.remaining_s()
    if remaining is not None:
        done += f", {text.about(remaining)} left"
    return _bar_line(name, progress.stage_done, progress.stage_trials, done, width)


def _bar_line(name: str, completed: int, total: int, ending: str, width: int) -> RenderableType:
    room = width - len(name) - len(ending) - 2 * _GAP
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    bar = ProgressBar(total=max(total, 1), completed=completed, width=min(room, _LONGEST_BAR))
    title, counted = Text(name, style="bold", no_wrap=True), Text(ending, no_wrap=True, overflow="ellipsis")
    if room >= _SHORTEST_BAR:
        grid.add_row(title, bar, counted)
    else:
        grid.add_row(title, counted)
    return grid


def _times(progress: Progress) -> Text:
    real = text.duration(progress.elapsed_s())
    if not progress.simulated:
        return _labelled("time", real)
    simulated = text.duration(progress.simulated_s)
    return _labelled("time", f"{real} real; the trials took {simulated} of simulated time")


def _best(progress: Progress, width: int) -> list[RenderableType]:
    best, baseline = progress.best, progress.baseline
    if not progress.done:
        return []
    if best is None or best.outcome is None:
        return [_labelled("best", "no trial meets the SLOs yet"), Text("")]
    if best.kind is TrialKind.BASELINE:
        shown = [Text("the defaults (score 1)", style="bold")]
    else:
        shown = [Text(f"#{best.number}, score {text.number(best.score)} (the defaults have 1)", style="bold green")]
    figures = []
    for objective in progress.spec.goals.objectives:
        value = best.outcome.metric(objective.metric)
        reference = baseline.outcome.metric(objective.metric) if baseline and baseline.outcome else None
        ratio = f" ×{value / reference:.2f}" if value and reference and best is not baseline else ""
        figures.append(f"{text.metric(objective.metric, value, progress.spec.price)}{ratio}")
    shown += [Text(line) for line in text.joined(figures, width - _LABEL)]
    if best.kind is not TrialKind.BASELINE:
        shown.append(Text(short_configuration(best.config, progress.defaults, width - _LABEL - 1), style="dim"))
    return [*(_labelled("" if place else "best", line) for place, line in enumerate(shown)), Text("")]


def _last_trials(progress: Progress, width: int, room: int) -> RenderableType:
    """Return the table of the last trials, the newest at the bottom."""
    trials = list(progress.last)[-room:]
    if not trials:
        return Text("no trial has finished yet", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    metrics = [objective.metric for objective in progress.spec.goals.objectives]
    fill_trials(table, trials, metrics, progress.defaults, width, progress.spec.price)
    return table


def _workers(progress: Progress) -> list[RenderableType]:
    rows: list[RenderableType] = [Text("")]
    for state in progress.workers:
        if state.trial is None:
            doing = "waits for a trial"
        else:
            doing = f"#{state.trial}  {state.phase or 'starting'}  {text.duration(state.seconds)}"
        rows.append(_labelled(f"w{state.slot}", f"{state.device}  {doing}"))
    return rows


def _footer(progress: Progress, width: int) -> list[RenderableType]:
    rows: list[RenderableType] = [Text("")]
    if progress.failures:
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(progress.failures.items()))
        rows.append(_labelled("failed", counts, "red"))
    status = progress.mlflow
    if status is not None:
        problem = f"; {text.one_line(status.problem)}" if status.problem else ""
        shown = f"{status.logged} of {text.count(status.finished, 'trial')} logged{problem}"
        rows.append(_labelled("MLflow", text.cut(shown, width - _LABEL), "yellow" if problem else ""))
    return rows


def _waiting(status: SyncStatus, study: str, width: int) -> list[RenderableType]:
    """Return the view after the study's end, while MLflow gets the last trials."""
    hint = Text(skip_hint(study), style="dim")
    return [_bar_line("MLflow", status.logged, status.finished, lines.sync_line(status), width), hint]


STEP = 10
"""Trials that MLflow logs between two lines of the wait for it."""

SUMMARY_S = 2.0
"""Seconds after which the wait for the study's summary in MLflow is shown."""


def skip_hint(study: str) -> str:
    """Return how the wait for MLflow is skipped."""
    return f"Ctrl-C skips the wait, `{command('study', 'sync', study)}` logs the rest"


class PlainView(View):
    """Writes one line for each finished trial."""

    def __init__(self, write: Callable[[str], None] = say, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._write = write
        self._monotonic = monotonic
        self._all_logged_since: float | None = None
        self._reported = -STEP

    def stage(self, plan: StagePlan) -> None:
        """Write which stage begins, but for the search."""
        super().stage(plan)
        if plan.stage is not Stage.SEARCH:
            self.note(lines.stage_line(plan))

    def finished(self, record: TrialRecord) -> None:
        super().finished(record)
        self.note(trial_line(self.progress, record))

    def note(self, text: str) -> None:
        self._write(text)

    def synced(self, status: SyncStatus) -> None:
        """Write, at the end of a study, how far MLflow is, every `STEP` trials."""
        super().synced(status)
        if status.waiting and not status.complete and status.logged >= self._reported + STEP:
            self._reported = status.logged
            hint = "" if status.logged else f" ({skip_hint(self.progress.spec.name)})"
            self.note(f"{lines.sync_line(status)}{hint}")
        if status.waiting and status.complete:
            self._show_wait_for_summary(status)

    def _show_wait_for_summary(self, status: SyncStatus) -> None:
        """Write once that only the study's summary is waited for, if that takes long."""
        if self._all_logged_since is None:
            self._all_logged_since = self._monotonic()
        elif self._monotonic() - self._all_logged_since > SUMMARY_S:
            self._all_logged_since = math.inf
            self.note(f"{lines.sync_line(status)} ({skip_hint(self.progress.spec.name)})")


def trial_line(progress: Progress, record: TrialRecord) -> str:
    """Return what came of a trial: `[13/60] #12 ok, score 0.749: …; quantization=fp8 +8 more`."""
    counted = progress.text_of_round(record.round) or f"{progress.stage_done}/{progress.stage_trials}"
    goals, price = progress.spec.goals, progress.spec.price
    line = f"[{counted}] {lines.trial_line(progress.rescored(record), goals.objectives, price)}"
    return lines.with_configuration(line, None if record.round else record.label, record.config, progress.defaults)


def new_view(plain: bool) -> View:
    """Return the live view where standard error is a terminal, unless `plain`."""
    return PlainView() if plain or not sys.stderr.isatty() else LiveView()
