"""Determine the workload of a study, its objectives and SLOs and its price, from settings and preset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from records.metrics import (
    COSTS,
    ENERGY,
    OF_WHOLE_GPU,
    PER_GPU,
    TOKEN_GOODPUTS,
    TRAFFIC_ONLY,
    Direction,
    metric,
    registered,
)
from records.trials import Provenance
from search_spaces import HardwareProfile, Price, list_price
from search_spaces.schema import VLLM
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.errors import SettingError
from tuner.scoring.goals import PUBLISHED_WEIGHTS, Goals, Slo, parse_objective, parse_slo
from tuner.settings.study import GoalSettings, WorkloadSettings
from tuner.workloads.presets import Preset
from tuner.workloads.reading import MAX_REQUESTS
from tuner.workloads.request_class import RequestClass
from tuner.workloads.schedule import make_schedule
from tuner.workloads.spec import POOLED_METRICS, ClosedLoop, Suite, Workload
from tuner.workloads.traffic import RESERVED_PREFIXES, Closed, Traffic, load_traffic


def check_slo(text: str) -> Slo:
    """Read an SLO that the user gave.

    Raises:
        SettingError: for an SLO that cannot be read, bounds a metric on the side of its good values, or cannot be met.
    """
    slo = parse_slo(text)
    known = metric(slo.metric)
    higher = known.direction is Direction.MAXIMIZE
    if slo.op.startswith("<") is higher:
        corrected = f"{slo.metric}{'>=' if higher else '<'}{slo.threshold:g}"
        better = "higher" if higher else "lower"
        raise SettingError("slo", text, f"{slo.metric} is better when {better}", f"give '{corrected}'")
    if not higher and slo.threshold <= 0:
        raise SettingError("slo", text, f"no {slo.metric} is below {slo.threshold:g}", "give a bound above 0")
    if slo.metric.rpartition(".")[2] in _AT_MOST_1 and (slo.threshold > 1 or (slo.threshold == 1 and slo.op == ">")):
        raise SettingError("slo", text, f"{slo.metric} is at most 1", f"give '{slo.metric}>=1'")
    return slo


_AT_MOST_1 = ("success_rate", "goodput_share", "session_goodput_share")


_TRAFFIC_OBJECTIVES = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
_GOODPUT_OBJECTIVES = ("goodput:40", "p99_tpot_ms", "p99_ttft_ms")
"""Default objectives of traffic from a file; the second where its classes have SLOs."""

_ITL = "_itl_ms"
"""Part of every metric of the inter-token latency."""


def make_goals(objectives: Sequence[str], slos: Sequence[str]) -> Goals:
    """Read objectives and SLOs; the score also weighs the success rate.

    Raises:
        SettingError: for an unknown metric, or a metric with two weights.
    """
    chosen = [parse_objective(text) for text in objectives]
    names = [objective.metric for objective in chosen]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise SettingError("objective", repeated, "this metric is given twice", "give each metric once")
    scored = list(chosen)
    if "success_rate" not in names:
        scored.append(parse_objective(f"success_rate:{PUBLISHED_WEIGHTS['success_rate']:g}"))
    return Goals(tuple(chosen), tuple(parse_slo(text) for text in slos), tuple(scored))


def find_goals(
    preset: Preset, workload: Workload, given: GoalSettings, *, own: bool, gpus: int = 1, one_shape: bool = True
) -> Goals:
    """Return the objectives and SLOs: the given ones or the preset's, and the SLOs of the request classes.

    Args:
        preset: its objectives and SLOs count where none are given.
        workload: the workload of the study.
        given: the given objectives and SLOs.
        own: whether the workload is the preset's; its objectives and SLOs fit no other.
        gpus: of a trial; rates for each GPU exist with several.
        one_shape: whether all servers use all of them. If not, rates among the default objectives are those for each
            GPU, because servers of different size are compared.

    Raises:
        SettingError: for a text that cannot be read, an SLO that cannot be meant, or a metric that this workload does
            not have.
    """
    if own:
        objectives: Sequence[str] = given.objective or preset.objectives
        slos = given.slo or preset.slos
    else:
        objectives = given.objective or _default_objectives(workload)
        slos = given.slo or (() if workload.slos else ("success_rate>=1",))
    if not given.objective and not one_shape:
        objectives = [_per_gpu(text) for text in objectives]
    class_slos = [f"{name}.{text}" for name, slo in workload.slos.items() for text in slo.constraints]
    for text in given.slo:
        check_slo(text)
    goals = make_goals(objectives, list(dict.fromkeys([*slos, *class_slos])))
    for field, name in _metrics_of(goals):
        _check_measured(field, name, workload)
        _check_several(field, name, gpus)
    _check_capacity(goals, workload)
    return goals


def _metrics_of(goals: Goals) -> list[tuple[str, str]]:
    """Return the setting and the metric of each objective and each SLO."""
    objectives = [("objective", each.metric) for each in goals.objectives]
    return [*objectives, *(("slo", each.metric) for each in goals.slos)]


def goal_sources(preset: str, given: GoalSettings, *, own: bool) -> dict[str, str]:
    """Return where SLOs and objectives come from, for the first lines of a study."""
    otherwise = f"preset {preset}" if own else "workload"
    return {"slos": "" if given.slo else otherwise, "objectives": "" if given.objective else otherwise}


def _per_gpu(text: str) -> str:
    """Return an objective with the rate for each GPU in place of the rate."""
    name, colon, weight = text.partition(":")
    prefix, dot, base = name.rpartition(".")
    found = {rate: each for each, rate in PER_GPU.items()}.get(base, base)
    return f"{prefix}{dot}{found}{colon}{weight}"


def _check_several(field: str, name: str, gpus: int) -> None:
    """Refuse a rate for each GPU where a trial has one."""
    base = name.rpartition(".")[2]
    if base in PER_GPU and gpus == 1:
        raise SettingError(field, name, f"a trial has one GPU, so this is {PER_GPU[base]}", f"give {PER_GPU[base]}")


def facts_of_load(workload: Workload, goals: Goals) -> dict[str, Any]:
    """Return what a search space's context has of a workload and its SLOs, by field."""
    parts = [*workload.loads.values()] if isinstance(workload, Suite) else [workload]
    traffics = [part for part in parts if isinstance(part, Traffic)]
    prefixes = [part.system_prompt + each.longest_prefix() for part in traffics for each in part.sent_classes.values()]
    texts = {each.text for each in request_classes(workload)}
    return {
        "concurrency": workload.max_concurrency,
        "input_len": workload.input_len,
        "output_len": workload.output_len,
        "priorities": workload.priorities,
        "request_rate": max(filter(None, (part.rate for part in traffics)), default=None),
        "prefix_len": max(prefixes, default=0),
        # What prompts of the user's own repeat is not known.
        "repetitive": True if texts & _REPETITIVE else None if texts - {"random"} - _REPETITIVE else False,
        "temperature": workload.temperature,
        "tpot_ms": _lowest_bound("tpot", workload, goals),
        "ttft_ms": _lowest_bound("ttft", workload, goals),
    }


_REPETITIVE = frozenset({"repetitive", "code"})
"""Texts in which drafts can be looked up."""


def _lowest_bound(latency: str, workload: Workload, goals: Goals) -> float | None:
    """Return the lowest upper bound on a latency in ms, of the study or of a request class; None without one."""
    bounds = [slo.threshold for slo in goals.slos if slo.op.startswith("<") and slo.metric.endswith(f"_{latency}_ms")]
    bounds += [slo.request.bounds_ms[latency] for slo in workload.slos.values() if latency in slo.request.bounds_ms]
    return min(bounds, default=None)


def has_itl_slo(goals: Goals, workload: Workload) -> bool:
    """Return whether an objective or an SLO, of the study or of a request class, is on the inter-token latency."""
    of_classes = any("itl" in slo.request.bounds_ms for slo in workload.slos.values())
    return of_classes or any(_ITL in name for _, name in _metrics_of(goals))


def _default_objectives(workload: Workload) -> Sequence[str]:
    """Return the objectives of a workload that is not a preset's; those of each part of a suite."""
    if isinstance(workload, Suite):
        return [f"{name}.{each}" for name, load in workload.loads.items() for each in _default_objectives(load)]
    return _GOODPUT_OBJECTIVES if isinstance(workload, Traffic) and workload.slo else _TRAFFIC_OBJECTIVES


def _check_measured(field: str, name: str, workload: Workload) -> None:
    """Refuse a metric that this workload does not have."""
    prefix, _, base = name.rpartition(".")
    if isinstance(workload, ClosedLoop):
        if prefix or base in TRAFFIC_ONLY or base in registered():
            remedy = "give traffic by {workload}, or a preset with request classes"
            raise SettingError(field, name, "this metric needs traffic", remedy)
        return
    if isinstance(workload, Suite):
        if not prefix and base not in (*POOLED_METRICS, "capacity"):
            remedy = f"name one: {next(iter(workload.loads))}.{name}"
            raise SettingError(field, name, "this metric is not defined over several workloads", remedy)
        if prefix and prefix not in workload.metric_prefixes:
            rule = f"no workload or class is called {prefix!r}; known: {', '.join(workload.metric_prefixes)}"
            raise SettingError(field, name, rule)
    elif prefix and prefix not in (*workload.sent_classes, *RESERVED_PREFIXES):
        classes = ", ".join(workload.sent_classes)
        raise SettingError(field, name, f"no class is called {prefix!r}; classes: {classes}, or worst, client")
    _check_whole_gpu(field, name, workload)
    if base == "session_goodput_share" and not any(each.has_sessions for each in _measured(prefix, workload)):
        raise SettingError(field, name, "no measured request class has sessions", "add `session` to a class")
    if base in ("goodput", "goodput_share", "session_goodput_share", *TOKEN_GOODPUTS) and not workload.slos:
        raise SettingError(field, name, "no request class has an SLO", "add `slo` to the traffic file")


def _measured(prefix: str, workload: Traffic | Suite) -> list[RequestClass]:
    """Return the classes whose requests a metric with a prefix may count."""
    own = workload.sent_classes.get(prefix) if isinstance(workload, Traffic) else None
    return request_classes(workload) if own is None else [own]


def _check_whole_gpu(field: str, name: str, workload: Traffic | Suite) -> None:
    """Refuse a cost or an energy of a request class: the classes share the GPU."""
    prefix, _, base = name.rpartition(".")
    if base in OF_WHOLE_GPU and prefix and not (isinstance(workload, Suite) and prefix in workload.loads):
        first = f"{next(iter(workload.loads))}." if isinstance(workload, Suite) else ""
        raise SettingError(field, name, "this metric is of the whole GPU, not of a class", f"give {first}{base}")


def _check_capacity(goals: Goals, workload: Workload) -> None:
    capacity = next((str(slo) for slo in goals.slos if slo.metric.rpartition(".")[2] == "capacity"), None)
    if capacity is not None:
        rule = "capacity is an objective, not an SLO: it is the highest rate at which the SLOs hold"
        raise SettingError("slo", capacity, rule, "give {objective} capacity")
    if not goals.has_objective("capacity"):
        return
    if not isinstance(workload, Traffic) or workload.mean_rate is None:
        rule = "a capacity search needs one traffic file with arrivals of process poisson, gamma, constant or trace"
        raise SettingError("objective", "capacity", rule)
    if not goals.slos:
        rule = "capacity is the highest rate at which the SLOs hold, and there are none"
        raise SettingError("objective", "capacity", rule, "add `slo` to the traffic file, or give {slo}")


_CHECKED_REQUESTS = 1000
"""Requests that are made to check traffic: ten million take a minute and 3 GB."""


def find_workload(preset: Preset, settings: WorkloadSettings) -> Workload:
    """Return the workload: that of the files or the preset's, with the given rate and fields.

    Raises:
        UserError: when a file cannot be read, or a setting does not fit the workload.
    """
    files = settings.files
    if len(files) > 1:
        return _suite(settings)
    workload = load_traffic(Path(files[0])) if files else preset.workload
    if isinstance(workload, Traffic):
        return _traffic(workload, settings.rate, settings.replacements, own=bool(files))
    if settings.rate is not None:
        raise SettingError("rate", settings.rate, "a closed loop has no rate", "give traffic by {workload}")
    try:
        return ClosedLoop.model_validate({**workload.model_dump(), **settings.replacements})
    except ValidationError as error:
        first = error.errors()[0]
        rule = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise SettingError(str(first["loc"][0]), first["input"], rule) from None


def _traffic(traffic: Traffic, rate: float | None, given: Mapping[str, int | float], *, own: bool) -> Traffic:
    """Return traffic with the given rate, users, number of requests and temperature; `own` is a file of the user."""
    refusal = _refusal(traffic, given)
    if refusal is not None:
        field, rule = refusal
        remedy = "edit the traffic file instead" if own else "give traffic of your own by {workload}"
        raise SettingError(field, given[field], rule, remedy)
    changes: dict[str, Any] = {"temperature": given.get("temperature", traffic.temperature)}
    if "max_concurrency" in given:
        changes["arrivals"] = traffic.arrivals.model_copy(update={"users": given["max_concurrency"]})
    if "num_prompts" in given:
        changes["requests"] = given["num_prompts"]
    changed = (traffic if rate is None else traffic.at_rate(rate)).model_copy(update=changes)
    begun = changed.model_copy(update={"requests": changed.requests and min(changed.requests, _CHECKED_REQUESTS)})
    make_schedule(begun, begun.seed)  # reads the files that the traffic names, so that mistakes show now
    return changed


def _refusal(traffic: Traffic, given: Mapping[str, int | float]) -> tuple[str, str] | None:
    """Return the first field that traffic does not have, or that is out of range, with the rule; None without one."""
    for field, value in given.items():
        if field in ("input_len", "output_len"):
            return field, "each request class of this traffic has its own lengths"
        if field == "max_concurrency" and not isinstance(traffic.arrivals, Closed):
            return field, f"this traffic has no users: its requests have arrival times ({traffic.arrivals.process})"
        if field == "num_prompts" and traffic.requests is None:
            return field, "this traffic ends after a time, not after a number of requests"
        if field in ("max_concurrency", "num_prompts") and not 1 <= value <= MAX_REQUESTS:
            return field, f"1 to {MAX_REQUESTS:,} are possible"
    return None


def check_requests(workload: Workload, engine: str, arguments: Sequence[str]) -> None:
    """Check that the server can answer requests for adapters, those with a schema, and those of sessions."""
    classes, kind = request_classes(workload), kind_of(engine)
    if any(each.has_sessions for each in classes) and not kind.can(Feature.SESSIONS):
        rule = f"sessions are not offered for {engine}: it sends no token ids of an answer"
        raise SettingError("workload", "session", rule, "leave it out of the class")
    if any(each.json_schema for each in classes) and not kind.can(Feature.SCHEMA):
        remedy = "leave it out of the class"
        raise SettingError("workload", "json_schema", f"structured output is not offered for {engine}", remedy)
    adapters = list(dict.fromkeys(name for each in classes for name in each.adapters))
    if adapters and not kind.can(Feature.ADAPTERS):
        remedy = "leave them out of the class"
        raise SettingError("workload", "adapters", f"LoRA adapters are not offered for {engine}", remedy)
    for name in adapters if engine == VLLM else ():
        if not any(word.startswith(f"{name}=") or json.dumps(name) in word for word in arguments):
            remedy = f"add -- --enable-lora --lora-modules {name}=FOLDER"
            raise SettingError("workload", f"adapters: {name}", "the server does not serve this LoRA adapter", remedy)


def request_classes(workload: Workload) -> list[RequestClass]:
    """Return the classes of a workload whose requests are sent; none of a closed loop of equal requests."""
    loads = workload.loads.values() if isinstance(workload, Suite) else (workload,)
    return [each for load in loads if isinstance(load, Traffic) for each in load.sent_classes.values()]


def _suite(settings: WorkloadSettings) -> Suite:
    """Return the workloads of several files, each under its file's name."""
    files = settings.files
    if settings.rate is not None:
        rule = f"a rate is for one traffic file, and {{workload}} gives {len(files)}"
        raise SettingError("rate", settings.rate, rule, "edit the traffic files instead")
    names = [Path(file).stem for file in files]
    if len({*names}) < len(names):
        rule = f"workloads are named by their files, and {', '.join(names)} are not distinct"
        raise SettingError("workload", list(files), rule, "rename a file")
    field = next((each for each in settings.replacements if each != "temperature"), None)
    if field is not None:
        rule = f"this setting is for one traffic file, and {{workload}} gives {len(files)}"
        raise SettingError(field, settings.replacements[field], rule, "edit the traffic files instead")
    loads = {
        name: _traffic(load_traffic(Path(file)), None, settings.replacements, own=True)
        for name, file in zip(names, files, strict=True)
    }
    temperatures = {load.temperature for load in loads.values()}
    if len(temperatures) > 1:
        rule = "the traffic files have different temperatures, and one server has one"
        raise SettingError("workload", list(files), rule, "give {temperature}")
    try:
        return Suite.model_validate({"loads": loads, "temperature": temperatures.pop()})
    except ValidationError as error:
        raise SettingError("workload", list(files), str(error.errors()[0]["ctx"]["error"]), "rename the file") from None


_LEAST_PRICE, _MOST_PRICE = 1e-6, 1e6
"""Bounds of a price per GPU-hour; they keep costs and their ratios finite."""


def study_price(given: float | None, card: HardwareProfile, goals: Goals, provenance: Provenance) -> Price | None:
    """Return the price of a study, see `find_price`.

    Raises:
        SettingError: for a goal on a cost without a price, or on the energy without a counter.
    """
    price = find_price(given, card)
    for field, name in _metrics_of(goals):
        base = name.rpartition(".")[2]
        if base in COSTS and price is None:
            raise SettingError(field, name, f"no list price of {card.name} is known", "give {price}")
        if base == ENERGY and (provenance is Provenance.SIMULATED or card.vendor == "cpu"):
            device = "a simulation" if provenance is Provenance.SIMULATED else "a CPU"
            raise SettingError(field, name, f"{device} has no energy counter", "measure it on a GPU")
    return price


def find_price(given: float | None, card: HardwareProfile) -> Price | None:
    """Return the given price of a GPU-hour, else the card's list price; None for a card without one."""
    return list_price(card) if given is None else Price(given)


def check_price(given: float | None) -> None:
    """Refuse a price that is not a number from `_LEAST_PRICE` to `_MOST_PRICE`."""
    if given is not None and not _LEAST_PRICE <= given <= _MOST_PRICE:
        rule = f"a price is from {_LEAST_PRICE:f} to {_MOST_PRICE:,.0f} per GPU-hour"
        raise SettingError("price", given, rule, "give for example 0.35, or leave it out for the card's list price")
