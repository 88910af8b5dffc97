"""The load of a study and what it is judged by, from what the user asked for and the preset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from storage.metrics import TRAFFIC_ONLY
from tuner.errors import UserError
from tuner.scoring.judge import Judge
from tuner.scoring.objectives import PUBLISHED_WEIGHTS, Objective, parse_objective
from tuner.scoring.slo import Slo, parse_slo
from tuner.workloads.presets import Preset
from tuner.workloads.schedule import make_schedule
from tuner.workloads.spec import AnyWorkload, Workload
from tuner.workloads.traffic import RESERVED, Traffic, load_traffic

_LOAD_OPTIONS = {"max_concurrency": "--users", "num_prompts": "--prompts"}


def make_judge(objectives: Sequence[str], slos: Sequence[str]) -> Judge:
    """Return the judge of the texts of `--objective` and `--slo`.

    Raises:
        UserError: for an unknown metric, or a metric named twice.
    """
    try:
        wanted: list[Objective] = [parse_objective(text) for text in objectives]
        limits: list[Slo] = [parse_slo(text) for text in slos]
    except ValueError as error:
        raise UserError(str(error)) from None
    names = [objective.metric for objective in wanted]
    if len(set(names)) != len(names):
        raise UserError(f"--objective names a metric twice: {', '.join(names)}; name each once")
    scored = list(wanted)
    if "success_rate" not in names:
        scored.append(parse_objective(f"success_rate:{PUBLISHED_WEIGHTS['success_rate']:g}"))
    return Judge(tuple(wanted), tuple(limits), tuple(scored))


def find_judge(
    preset: Preset, workload: AnyWorkload, objectives: Sequence[str], slos: Sequence[str], *, own: bool
) -> Judge:
    """Return the judge: what the user asked for, else the preset's, with what the load's classes were promised.

    Args:
        preset: what decides where the user said nothing.
        workload: the load.
        objectives: texts of `--objective`.
        slos: texts of `--slo`.
        own: whether the load is the preset's own; its objectives and SLOs are about no other.

    Raises:
        UserError: for what cannot be read, or cannot be measured under this load.
    """
    if own:
        objectives, slos = objectives or preset.objectives, slos or preset.slos
    else:
        promised = isinstance(workload, Traffic) and bool(workload.slo)
        objectives = objectives or (GOOD_TRAFFIC if promised else TRAFFIC)
        slos = slos or (() if promised else ("success_rate>=1",))
    if not isinstance(workload, Traffic):
        return _known(make_judge(objectives, slos), workload, ())
    promises = [f"{name}.{text}" for name, slo in workload.slos.items() for text in slo.constraints]
    return _known(
        make_judge(objectives, list(dict.fromkeys([*slos, *promises]))), workload, tuple(workload.sent_classes)
    )


def _known(judge: Judge, workload: AnyWorkload, classes: tuple[str, ...]) -> Judge:
    """Return the judge, if this load can measure all that it asks for; `classes` are those of traffic."""
    for name in (*(objective.metric for objective in judge.objectives), *(slo.metric for slo in judge.slos)):
        prefix, _, base = name.rpartition(".")
        if not classes and (prefix or base in TRAFFIC_ONLY):
            raise UserError(f"{name} is a metric of traffic; give --workload, or a preset with classes of requests")
        if classes and prefix and prefix not in (*classes, *RESERVED):
            raise UserError(f"{name}: there is no class {prefix!r}; classes: {', '.join(classes)}, or worst, client")
        if base in ("goodput", "goodput_share") and isinstance(workload, Traffic) and not workload.slo:
            raise UserError(f"{name}: no class was promised anything; give `slo` in the traffic")
    if any(slo.metric.rpartition(".")[2] == "capacity" for slo in judge.slos):
        raise UserError(
            "capacity is an objective, not an SLO: it is the rate at which SLOs hold; give --objective capacity"
        )
    if judge.wants("capacity"):
        _check_capacity(judge, workload)
    return judge


def _check_capacity(judge: Judge, workload: AnyWorkload) -> None:
    if not isinstance(workload, Traffic) or workload.rate is None:
        raise UserError("capacity is searched by rate; give traffic of process poisson, gamma or constant")
    if not judge.slos:
        raise UserError(
            "capacity is the rate at which SLOs hold, and there are none; give `slo` in the traffic, or --slo"
        )


TRAFFIC = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
GOOD_TRAFFIC = ("goodput:40", "p99_tpot_ms", "p99_ttft_ms")
"""Objectives of traffic that no preset has judged; the second where its classes were promised something."""


def too_long(workload: AnyWorkload, context: int) -> str:
    """Return the line that refuses a load whose longest request exceeds the model's context of so many tokens."""
    if isinstance(workload, Traffic):
        name = max(workload.sent_classes, key=lambda name: workload.classes[name].longest())
        return (
            f"class {name!r} has requests of up to {workload.longest_request} tokens, more than the model's context of "
            f"{context}; lower its lengths"
        )
    return (
        f"requests of {workload.input_len} + {workload.output_len} tokens exceed the model's context of {context}; "
        "lower --input-len or --output-len"
    )


def find_workload(
    preset: Preset, file: str | None, rate: float | None, given: Mapping[str, int | float]
) -> AnyWorkload:
    """Return the load: the file's or the preset's, with what the command line says of it.

    Raises:
        UserError: when a file cannot be read, or what was said does not fit the load.
    """
    load = dict(given)
    known = preset.workload if file is None else load_traffic(Path(file))
    if isinstance(known, Traffic):
        temperature = load.pop("temperature", known.temperature)
        if load:
            raise UserError(
                f"{_option(next(iter(load)))} is for the closed loop of fixed lengths; edit the traffic instead"
            )
        known = known if rate is None else known.at_rate(rate)
        make_schedule(known, known.seed)  # reads what files it names, so that a mistake in one is found now
        return known.model_copy(update={"temperature": temperature})
    if rate is not None:
        raise UserError(f"--rate {rate:g}: a closed loop has no rate; give --workload with an open one")
    try:
        return Workload.model_validate({**known.model_dump(), **load})
    except ValidationError as error:
        first = error.errors()[0]
        option = _option(str(first["loc"][0]))
        raise UserError(f"{option} {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _option(name: str) -> str:
    return _LOAD_OPTIONS.get(name, "--" + name.replace("_", "-"))
