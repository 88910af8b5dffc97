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
from tuner.workloads.spec import ClosedLoop, Workload
from tuner.workloads.suite import POOLED_METRICS, Suite
from tuner.workloads.traffic import RESERVED_PREFIXES, Traffic, load_traffic

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
    preset: Preset, workload: Workload, objectives: Sequence[str], slos: Sequence[str], *, own: bool
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
        promised = isinstance(workload, Traffic | Suite) and bool(workload.slos)
        objectives = objectives or _usual_objectives(workload)
        slos = slos or (() if promised else ("success_rate>=1",))
    promises = [] if isinstance(workload, ClosedLoop) else _promises(workload)
    judge = make_judge(objectives, list(dict.fromkeys([*slos, *promises])))
    for name in (*(objective.metric for objective in judge.objectives), *(slo.metric for slo in judge.slos)):
        _check_measured(name, workload)
    _check_capacity(judge, workload)
    return judge


def _promises(traffic: Traffic | Suite) -> list[str]:
    return [f"{name}.{text}" for name, slo in traffic.slos.items() for text in slo.constraints]


def _usual_objectives(workload: Workload) -> Sequence[str]:
    """Return the objectives of a load that no preset has judged; those of each load where there are several."""
    if isinstance(workload, Suite):
        return [f"{name}.{each}" for name, load in workload.loads.items() for each in _usual_objectives(load)]
    return GOOD_TRAFFIC if isinstance(workload, Traffic) and workload.slo else TRAFFIC


def _check_measured(name: str, workload: Workload) -> None:
    """Refuse a metric that this load does not give."""
    prefix, _, base = name.rpartition(".")
    if isinstance(workload, ClosedLoop):
        if prefix or base in TRAFFIC_ONLY:
            raise UserError(f"{name} is a metric of traffic; give --workload, or a preset with classes of requests")
        return
    if isinstance(workload, Suite):
        known = workload.metric_prefixes
        if not prefix and base not in (*POOLED_METRICS, "capacity"):
            raise UserError(f"{name} has no meaning over several loads; name one: {next(iter(workload.loads))}.{name}")
        if prefix and prefix not in known:
            raise UserError(f"{name}: there is no load or class {prefix!r}; known: {', '.join(known)}")
    elif prefix and prefix not in (*workload.sent_classes, *RESERVED_PREFIXES):
        classes = ", ".join(workload.sent_classes)
        raise UserError(f"{name}: there is no class {prefix!r}; classes: {classes}, or worst, client")
    if base in ("goodput", "goodput_share") and not workload.slos:
        raise UserError(f"{name}: no class was promised anything; give `slo` in the traffic")


def _check_capacity(judge: Judge, workload: Workload) -> None:
    if any(slo.metric.rpartition(".")[2] == "capacity" for slo in judge.slos):
        raise UserError(
            "capacity is an objective, not an SLO: it is the rate at which SLOs hold; give --objective capacity"
        )
    if not judge.wants("capacity"):
        return
    if not isinstance(workload, Traffic) or workload.rate is None:
        raise UserError("capacity is searched by rate; give one traffic of process poisson, gamma or constant")
    if not judge.slos:
        raise UserError(
            "capacity is the rate at which SLOs hold, and there are none; give `slo` in the traffic, or --slo"
        )


TRAFFIC = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
GOOD_TRAFFIC = ("goodput:40", "p99_tpot_ms", "p99_ttft_ms")
"""Objectives of traffic that no preset has judged; the second where its classes were promised something."""


def too_long(workload: Workload, context: int) -> str:
    """Return the line that refuses a load whose longest request exceeds the model's context of so many tokens."""
    load = workload.longest_workload if isinstance(workload, Suite) else workload
    if isinstance(load, Traffic):
        name = max(load.sent_classes, key=lambda name: load.classes[name].longest())
        return (
            f"class {name!r} has requests of up to {load.longest_request} tokens, more than the model's context of "
            f"{context}; lower its lengths"
        )
    return (
        f"requests of {load.input_len} + {load.output_len} tokens exceed the model's context of {context}; "
        "lower --input-len or --output-len"
    )


def find_workload(
    preset: Preset, files: Sequence[str], rate: float | None, given: Mapping[str, int | float]
) -> Workload:
    """Return the load: the files' or the preset's, with what the command line says of it.

    Raises:
        UserError: when a file cannot be read, or what was said does not fit the load.
    """
    if len(files) > 1:
        return _suite(files, rate, given)
    known = load_traffic(Path(files[0])) if files else preset.workload
    if isinstance(known, Traffic):
        return _checked(known, rate, given)
    if rate is not None:
        raise UserError(f"--rate {rate:g}: a closed loop has no rate; give --workload with an open one")
    try:
        return ClosedLoop.model_validate({**known.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        option = _option(str(first["loc"][0]))
        raise UserError(f"{option} {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _checked(traffic: Traffic, rate: float | None, given: Mapping[str, int | float]) -> Traffic:
    load = dict(given)
    temperature = load.pop("temperature", traffic.temperature)
    if load:
        raise UserError(
            f"{_option(next(iter(load)))} is for the closed loop of fixed lengths; edit the traffic instead"
        )
    traffic = traffic if rate is None else traffic.at_rate(rate)
    make_schedule(traffic, traffic.seed)  # reads what files it names, so that a mistake in one is found now
    return traffic.model_copy(update={"temperature": temperature})


def _suite(files: Sequence[str], rate: float | None, given: Mapping[str, int | float]) -> Suite:
    """Return the loads of several files, each under its file's name."""
    if rate is not None:
        raise UserError(f"--rate {rate:g} is for one load, and --workload gives {len(files)}; edit the traffic instead")
    names = [Path(file).stem for file in files]
    if len({*names}) < len(names):
        raise UserError(f"--workload: loads are called by their files, and {', '.join(names)} are not distinct; rename")
    loads = {name: _checked(load_traffic(Path(file)), None, given) for name, file in zip(names, files, strict=True)}
    temperatures = {load.temperature for load in loads.values()}
    if len(temperatures) > 1:
        raise UserError("--workload: the loads want different temperatures of one server; give one, or --temperature")
    try:
        return Suite.model_validate({"loads": loads, "temperature": temperatures.pop()})
    except ValidationError as error:
        raise UserError(f"--workload: {error.errors()[0]['ctx']['error']}; rename the file") from None


def _option(name: str) -> str:
    return _LOAD_OPTIONS.get(name, "--" + name.replace("_", "-"))
