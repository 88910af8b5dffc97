"""Recorded runs as rows of tables, and the simulator's prediction of a row; `calibrate` and `accuracy` use them."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from benchmarks.simulator.bench_serve import BenchServeWorkload, bench_serve_client
from search_spaces import HardwareProfile, ModelShape, hardware_named, known_hardware, version_tuple
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import client_metrics, run_workload
from tuner.engines.simulator.serve_config import find_shape, resolve_serve_config
from tuner.use_cases.engines import find_card
from tuner.workloads.spec import SingleWorkload

REFERENCE_FOLDER = Path(__file__).parents[1] / "reference"
COMPARED_METRICS = ("output_throughput", "mean_tpot_ms", "p99_tpot_ms", "mean_ttft_ms", "p99_ttft_ms")
PUBLISHED_PACKAGES = frozenset({"arctic_inference", "flashinfer"})
H200_PACKAGES = frozenset({"arctic_inference"})
"""The host of the H200 tables did not have FlashInfer."""
EXPERTS_HOST = {"host_speed": 0.555, "launch_us": 15.98}
"""The host of `h200_experts.jsonl`, fitted by `benchmarks.simulator.experts`: a slow virtual machine."""
TABLE_HOSTS = {name: {"host_speed": 1.0, "launch_us": 4.5} for name in ("h200_a05", "h200_b7")}
"""The hosts beside which tables were recorded: theirs is the host of speed 1."""
CLIENT_SEED = 0
"""The default of `vllm bench serve`: lengths and arrivals are those of the recorded runs."""
HOST_VALUES = ("host_speed", "launch_us")
"""Values of the card's host, which `predict` takes among the parameters."""
_INTEGER_OPTIONS = ("num-prompts", "max-concurrency", "random-input-len", "random-output-len", "seed")
_FLOAT_OPTIONS = ("random-range-ratio", "request-rate", "burstiness")


@dataclass(frozen=True)
class Row:
    """One recorded run.

    Attributes:
        id: the row's name.
        group: the table or publication that it comes from.
        card, model, version, packages, args: what ran; `args` are the arguments after `vllm serve MODEL`.
        workload: what the client sent; a workload of a study counts from its first repeat.
        metrics: the measured metrics, latencies in ms.
        completed: number of completed requests.
        fit: whether the fit may use the row.
        fit_only: the metrics that the fit may use; empty for all.
        weight: the row's weight in the fit.
        repeats: benchmarks of a study's trial; its metrics are their medians.
        warm: whether the server had run another workload before.
        limit_s: seconds after which the client stopped; requests that had not ended by then count nowhere.
        gpus: of the machine.
    """

    id: str
    group: str
    card: HardwareProfile
    model: ModelShape
    version: tuple[int, ...]
    packages: frozenset[str]
    args: tuple[str, ...]
    workload: BenchServeWorkload | SingleWorkload
    metrics: Mapping[str, float]
    completed: int | None = None
    fit: bool = True
    fit_only: tuple[str, ...] = ()
    weight: float = 1.0
    repeats: int = 1
    warm: bool = False
    limit_s: float = math.inf
    gpus: int = 1


def published() -> list[Row]:
    """Return the published runs."""
    entries = yaml.safe_load((REFERENCE_FOLDER / "published.yaml").read_text(encoding="utf-8"))
    return [
        Row(
            id=entry["id"],
            group=entry["source"],
            card=hardware_named(entry["card"]),
            model=shape_of(entry["model"]),
            version=version_tuple(entry["version"]),
            packages=PUBLISHED_PACKAGES,
            args=tuple(entry["args"]),
            workload=BenchServeWorkload(**entry["load"], seed=CLIENT_SEED),
            metrics=entry["metrics"],
            fit=bool(entry["fit"]),
            weight=entry.get("weight", 1.0),
            fit_only=tuple(entry["fit"]) if isinstance(entry["fit"], list) else (),
            limit_s=entry.get("limit_s", math.inf),
        )
        for entry in entries
    ]


def h200() -> list[Row]:
    """Return the rows of both H200 tables; the four runs of the defaults are one row, their mean."""
    users_50 = BenchServeWorkload(200, 50, 512, 512, seed=CLIENT_SEED)
    rate_20 = BenchServeWorkload(240, 256, 1024, 256, range_ratio=0.7, rate=20.0, seed=CLIENT_SEED)
    rows = read_table(REFERENCE_FOLDER / "h200_a05.jsonl", "h200", "Qwen/Qwen2.5-0.5B", users_50)
    return rows + read_table(REFERENCE_FOLDER / "h200_b7.jsonl", "h200", "Qwen/Qwen2.5-7B-Instruct", rate_20)


def read_table(file: Path, card: str, model: str, workload: BenchServeWorkload) -> list[Row]:
    """Return the rows of a table in the format of `reference/h200_*.jsonl`; equal arguments make one row, their mean.

    Args:
        file: JSON lines, one run each.
        card: a known card, which is put beside the table's host (`TABLE_HOSTS`), or a YAML file.
        model: a known model or a folder with its config.json.
        workload: what every run sent.
    """
    runs: dict[tuple[str, ...], list[dict[str, float]]] = {}
    names: dict[tuple[str, ...], str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("ok", True):
            args = tuple(map(str, entry["args"]))
            runs.setdefault(args, []).append(entry)
            names.setdefault(args, entry["name"])
    shape, hardware = shape_of(model), beside_host(find_card(card), TABLE_HOSTS.get(file.stem, {}))
    return [
        Row(
            id=f"{file.stem}-{names[args]}",
            group=file.stem,
            card=hardware,
            model=shape,
            version=(0, 25, 1),
            packages=H200_PACKAGES,
            args=args,
            workload=workload,
            metrics={name: float(np.mean([each[name] for each in entries])) for name in COMPARED_METRICS},
            completed=int(entries[0]["completed"]),
        )
        for args, entries in runs.items()
    ]


def h200_experts() -> list[Row]:
    """Return the loads of mixtures of experts on one and two H200s, with random weights."""
    lines = (REFERENCE_FOLDER / "h200_experts.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        Row(
            id=f"{entry['name']} {entry['load']}",
            group=entry["name"],
            card=beside_host(hardware_named("h200"), EXPERTS_HOST),
            model=shape_of(entry["model"]),
            version=(0, 25, 1),
            packages=frozenset(),
            args=tuple(entry["args"]),
            workload=BenchServeWorkload(**entry["workload"]),
            metrics={name: entry[name] for name in COMPARED_METRICS},
            completed=entry["completed"],
            warm=True,
            gpus=entry["gpus"],
        )
        for entry in map(json.loads, lines)
        if entry["model"] is not None
    ]


def beside_host(card: HardwareProfile, host: Mapping[str, float]) -> HardwareProfile:
    """Return a known card with the given `HOST_VALUES`; a card from a YAML file as it is."""
    if card.key not in known_hardware():
        return card
    speed, launch_us = host.get("host_speed", card.host_speed), host.get("launch_us", card.launch_us)
    return replace(card, host_speed=speed, launch_us=launch_us)


def shape_of(model: str) -> ModelShape:
    """Return the shape of a known model, or of a folder's config.json; end the program if there is none."""
    try:
        return find_shape(model)
    except ConfigRefused as error:
        raise SystemExit(f"--model {error}") from None


def parse_bench_serve(arguments: str) -> BenchServeWorkload:
    """Return the workload of a command line of `vllm bench serve`; options that do not describe it are ignored."""
    parser = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    for name in _INTEGER_OPTIONS:
        parser.add_argument(f"--{name}", type=int)
    for name in _FLOAT_OPTIONS:
        parser.add_argument(f"--{name}", type=float)
    options = vars(parser.parse_known_args(shlex.split(arguments))[0])
    rate = options["request_rate"]
    return BenchServeWorkload(
        num_prompts=options["num_prompts"] or 1000,
        max_concurrency=options["max_concurrency"],
        input_len=options["random_input_len"] or 1024,
        output_len=options["random_output_len"] or 128,
        range_ratio=options["random_range_ratio"] or 0.0,
        rate=None if rate is None or math.isinf(rate) else rate,
        burstiness=options["burstiness"] or 1.0,
        seed=options["seed"] or 0,
    )


def predict(row: Row, changes: Mapping[str, float] | None = None, warm: bool = False) -> dict[str, float | None]:
    """Return the predicted metrics of a row, without noise.

    Args:
        row: the recorded run.
        changes: parameters that replace the stored ones, and `HOST_VALUES`.
        warm: whether every server has run another workload before.
    """
    values = dict(changes or {})
    card = beside_host(row.card, {name: values.pop(name) for name in HOST_VALUES if name in values})
    parameters = replace(parameters_of(card.key), **values)
    config = resolve_serve_config(row.args, {}, row.model, card, row.version, row.packages, row.gpus)
    server = ConfiguredServer(config, parameters)
    if not isinstance(row.workload, BenchServeWorkload):
        return _median_of_repeats(server, row.workload, row.repeats)
    client = bench_serve_client(row.workload, parameters.client_us * 1e-6)
    run = server.run(client, CLIENT_SEED, noise=False, warm=warm or row.warm, limit_s=row.limit_s)
    return run.bench_metrics((50, 99))


def _median_of_repeats(server: ConfiguredServer, workload: SingleWorkload, repeats: int) -> dict[str, float | None]:
    """Return the medians of a trial's benchmarks; empty if one of them did not end."""
    measured = []
    for index in range(repeats):
        run = run_workload(server, workload, workload.repeat_seed(index))
        metrics = client_metrics(workload, run)
        if metrics is None:
            return {}
        measured.append(metrics)
    medians: dict[str, float | None] = {}
    for name in COMPARED_METRICS:
        values = [value for metrics in measured if (value := metrics.get(name)) is not None]
        medians[name] = statistics.median(values) if values else None
    return medians
