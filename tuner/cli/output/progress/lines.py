"""Lines about a study: what precedes its first trial, its trials and retries, and a service's study as it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from records.trials import Config, Provenance, TrialRecord
from search_spaces import JoinedSpace, Price, ResolvedSpace
from search_spaces.parameter import ParameterValue
from tuner.cli.output.parts import missed_slos
from tuner.client.replies import StudyEvent
from tuner.engines.base import EngineInfo
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.results import text
from tuner.results.conclusion import price_lines
from tuner.results.text import short_configuration
from tuner.scoring.goals import Goals, Objective
from tuner.study.protocols import Stage, StagePlan, StudyStart, SyncStatus
from tuner.workloads.schedule import file_notes

LINE_WIDTH = 140
"""Most characters of the line of a trial."""

LONGEST_NAME = 24
"""Characters of the name of an enqueued configuration from which the name is left out."""


def trial_line(record: TrialRecord, objectives: Sequence[Objective], price: Price | None) -> str:
    """Return what came of a trial, without its configuration: `#12 ok, score 0.749: output_throughput 2,390 tok/s`."""
    outcome = record.outcome
    if outcome is None:
        return f"#{record.number} pending"
    if outcome.cut is not None:
        return f"#{record.number} cut short: {outcome.cut.reason}"
    failure = None if outcome.failure is None else (outcome.failure.kind.value, outcome.failure.message)
    figures = {each.metric: outcome.metric(each.metric) for each in objectives}
    return result_line(f"#{record.number} {record.state}", failure, missed_slos(record), record.score, figures, price)


def result_line(
    trial: str,
    failure: tuple[str, str] | None,
    missed: Sequence[str],
    score: float | None,
    figures: Mapping[str, float | None],
    price: Price | None,
) -> str:
    """Return the parts of a trial's result on one line.

    `trial` is number and state, `#12 ok`; `failure` is kind and message; `figures` are the objectives.
    """
    if failure is not None:
        return f"{trial}, {failure[0]}: {text.one_line(failure[1])}"
    parts = [trial, *(f"misses {name}" for name in missed)]
    parts += [] if score is None else [f"score {score:.3f}"]
    return f"{', '.join(parts)}: {', '.join(text.metric(name, value, price) for name, value in figures.items())}"


def with_configuration(line: str, label: str | None, config: Config, defaults: Config) -> str:
    """Return a line, at most `LINE_WIDTH` long, that ends in what a configuration, perhaps a named one, changes."""
    named = f"{label} = " if label and config else ""
    if named.startswith("{") or len(named) > LONGEST_NAME:
        named = ""
    least = short_configuration(config, defaults, 0)
    line = text.cut(line, LINE_WIDTH - len(named) - len(least) - 2)
    return f"{line}; {named}{short_configuration(config, defaults, LINE_WIDTH - len(line) - len(named) - 2)}"


def stage_line(plan: StagePlan) -> str:
    """Return what a stage after the search measures."""
    if plan.stage is Stage.CAPACITY:
        return f"capacity: the highest request rate at which all SLOs hold for {', '.join(plan.subjects)}"
    if plan.stage in (Stage.ABLATION, Stage.REDUCTION):
        return f"{plan.stage.value}: {', '.join(plan.subjects)}"
    rounds = text.count(len(plan.rounds), "round")
    return f"confirmation: {', '.join(plan.subjects)} in {rounds}, {text.count(plan.trials, 'measurement')}"


def retry_line(number: int, round_: int, attempt: int, kind: str, message: str) -> str:
    """Return why a trial runs again: its failed attempt, and kind and message of the failure."""
    return f"{text.title(number, round_)} runs again: attempt {attempt} failed, {kind}: {text.one_line(message)}"


def sync_line(status: SyncStatus) -> str:
    line = f"logging to MLflow: {status.logged} of {text.count(status.finished, 'trial')}"
    if status.waiting and status.complete:
        line += ", now the study's summary"
    return f"{line} ({text.one_line(status.problem)})" if status.problem else line


def opening_lines(start: StudyStart, done: int) -> list[str]:
    """Return what is simulated, the study's size, what it reads and sends, its goals, and a price.

    `done` is the number of finished trials of earlier runs.
    """
    spec, engine = start.spec, start.engine
    lines = []
    if engine.provenance is Provenance.SIMULATED:
        hardware = spec.facts["hardware"]
        lines.append(simulation_line(engine, hardware if spec.gpus == 1 else f"{spec.gpus} × {hardware}"))
    parts = [
        text.count(start.budget.trials, "trial") + (f" ({done} finished before)" if done else ""),
        text.count(start.workers, "worker"),
        " and ".join(f"{each.name} {each.version}" for each in engine.every),
        text.count(len(spec.space.parameters), "parameter"),
    ]
    lines.append(f"study {spec.name}: {', '.join(parts)}")
    if spec.space.dropped:
        dropped, hardware = text.count(len(spec.space.dropped), "choice"), spec.space.context.hardware
        several = f" --gpus-per-trial {spec.gpus}" if spec.gpus > 1 else ""
        command = f"tuner study space --gpu {hardware.key} {_engine_words(engine)}{several}"
        lines.append(f"{dropped} ruled out on this hardware; `{command}` lists them with the reasons")
    lines += [*file_notes(spec.workload), *unused_models(spec.space)]
    if spec.search_prompts:
        rounds = "; the rounds of the confirmation send all" if spec.confirmation.confirm_rounds else ""
        lines.append(f"each trial of the search sends {spec.search_prompts} requests{rounds}")
    lines += goal_lines(spec.goals, spec.facts.get("goals_from", {}))
    goals = [*(each.metric for each in spec.goals.objectives), *(each.metric for each in spec.goals.slos)]
    return [*lines, *price_lines(goals, [spec.price])]


def goal_lines(goals: Goals, sources: Mapping[str, str]) -> list[str]:
    """Return the SLOs, and the score weights, with where they come from if the user did not give them.

    `sources`: see `goal_sources`; empty in a study that does not know them.
    """
    weights = [f"{each.metric} {each.weight:g}" for each in goals.scored]
    found = (
        ("SLOs", "slos", "--slo", [str(slo) for slo in goals.slos]),
        ("score weights", "objectives", "--objective", weights),
    )
    lines = []
    for name, key, option, shown in found:
        source = sources.get(key)
        origin = f" ({source}; {option} replaces them)" if source else ""
        lines += [f"{name}{origin}: {', '.join(shown)}"] if shown else []
    return lines


def unused_models(space: ResolvedSpace) -> Iterator[str]:
    """Yield a line for each given checkpoint, and for the draft model, that no configuration of the study can use."""
    if isinstance(space, JoinedSpace):
        space = space.parts[space.default]
    offered = [choice for parameter in space.parameters for choice in parameter.choices]
    declared = [(name, choice) for name, spec in space.specs.items() for choice in spec.choices]
    for method in space.context.checkpoints:
        if all(choice.checkpoint != method for choice in offered):
            wanted = {(name, choice.value) for name, choice in declared if choice.checkpoint == method}
            yield f"--checkpoint {method} is not used: {_why(space, wanted)}"
    if space.context.draft_model is not None and not any(choice.draft_model for choice in offered):
        wanted = {(name, choice.value) for name, choice in declared if choice.draft_model}
        yield f"--draft-model is not used: {_why(space, wanted)}"


def _why(space: ResolvedSpace, wanted: Collection[tuple[str, ParameterValue]]) -> str:
    """Return why a space offers none of some choices, which are pairs of parameter and value."""
    names = {name for name, _ in wanted}
    for each in space.dropped:
        if (each.parameter, each.value) in wanted or (each.parameter in names and each.value is None):
            return each.reason
    return f"the study does not search the parameter {' or '.join(sorted(names))}"


def _engine_words(engine: EngineInfo) -> str:
    """Return the options of `tuner study space` that show the engine's space."""
    kind = kind_of(engine.name)
    if kind.can(Feature.PREDICTED):
        return f"--vllm-version {engine.version}"
    return f"--engine {engine.name}" if kind.program is not None else f"--engine {engine.name} --space FILE"


def simulation_line(engine: EngineInfo, hardware: str) -> str:
    """Return what is simulated, and how to measure instead; `hardware` is a card, or such as `2 × NVIDIA H200`."""
    place = hardware if " × " in hardware else f"one {hardware}"
    return f"{text.BANNER}: vLLM {engine.version} on {place}; use --engine vllm without --gpu to measure"


_SEARCH = StagePlan(Stage.SEARCH, 0)
_RETRIED = ("number", "round", "attempt", "kind", "message")


class WatchedStudy:
    """Turns the events of a study into lines, as `tuner optimize --plain` prints them.

    Attributes:
        simulated: whether its figures are predicted; None before its first run.
    """

    def __init__(self) -> None:
        self.simulated: bool | None = None
        self._plan = _SEARCH
        self._price: Price | None = None
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
            "trial_retried": lambda data: [retry_line(*(data[name] for name in _RETRIED))],
            "note": lambda data: [data["text"]],
            "drift": lambda data: [f"deployed servers: {data['text']}"],
            "requested": lambda data: [f"asked to {data['request']}"],
            "lost": lambda data: [f"the driver was lost: {data.get('reason', 'for an unknown reason')}"],
        }
        write = writers.get(event.kind)
        return [] if write is None else [text.one_line(line) for line in write(event.data)]

    def _opened(self, data: Mapping[str, Any]) -> list[str]:
        self.simulated = data["provenance"] == "simulated"
        self._price = Price.from_dict(data.get("price"))
        engine = f"{data['engine']} {data['version']}"
        parts = [text.count(data["trials"], "trial"), text.count(data["workers"], "worker"), engine]
        line = f"study {data['study']}: {', '.join(parts)}"
        return [f"{text.BANNER}: {engine}", line] if self.simulated else [line]

    def _stage(self, data: Mapping[str, Any]) -> list[str]:
        self._plan = StagePlan(Stage(data["stage"]), data["trials"], tuple(data["subjects"]), tuple(data["rounds"]))
        self._in_stage = set()
        return [] if self._plan.stage is Stage.SEARCH else [stage_line(self._plan)]

    def _trial(self, data: Mapping[str, Any]) -> list[str]:
        number, round_ = data["number"], data["round"]
        self._in_stage.add((number, round_))
        if not round_:
            self._trials.add(number)
        failure = data["failure"] and (data["failure"]["kind"], data["failure"]["message"])
        missed = [name for name, violation in data.get("constraints", {}).items() if violation > 0]
        trial = f"#{number} {'failed' if failure else data['state']}"
        result = result_line(trial, failure, missed, data["score"], data["values"], self._price)
        if data.get("cut"):
            result = f"#{number} cut short: {data['cut']}"
        line = f"[{self._count(round_)}] {result}"
        label = None if round_ else data.get("label")
        return [with_configuration(line, label, data["config"], {})]

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
