"""Rows of recorded runs, and what the simulator says of them; shared by `calibrate.py` and `accuracy.py`."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml

from search_spaces import HardwareProfile, ModelShape, SpaceError, hardware_named, known_model
from tuner.engines.simulator.clients.bench_serve import BenchServeWorkload, bench_serve_client
from tuner.engines.simulator.clients.metrics import bench_metrics
from tuner.engines.simulator.config.serve_config import resolve_serve_config
from tuner.engines.simulator.configured_server import ConfiguredServer
from tuner.engines.simulator.parameters import Parameters, parameters_of
from tuner.use_cases.simulated_engine import find_card

REFERENCE = Path(__file__).parents[1] / "reference"
METRICS = ("output_throughput", "mean_tpot_ms", "p99_tpot_ms", "mean_ttft_ms", "p99_ttft_ms")
PACKAGES = frozenset({"arctic_inference", "flashinfer"})
H200_PACKAGES = frozenset({"arctic_inference"})
"""FlashInfer was not installed where the H200 tables were measured."""
SEED = 0
"""The client's default: lengths and arrivals are those of the recorded runs."""
NUMBERS = ("num_prompts", "max_concurrency", "random_input_len", "random_output_len", "seed")


@dataclass(frozen=True)
class Row:
    """One recorded run. `metrics` has what was measured, latencies in ms; `fit` says whether it may be fitted,
    `fit_only` by which metrics if not by all, `weight` how much it counts there."""

    id: str
    group: str
    card: HardwareProfile
    model: ModelShape
    version: tuple[int, ...]
    packages: frozenset[str]
    args: tuple[str, ...]
    load: BenchServeWorkload
    metrics: Mapping[str, float]
    completed: int | None = None
    fit: bool = True
    fit_only: tuple[str, ...] = ()
    weight: float = 1.0


def published() -> list[Row]:
    """Return the published runs."""
    entries = yaml.safe_load((REFERENCE / "published.yaml").read_text(encoding="utf-8"))
    return [
        Row(
            id=entry["id"],
            group=entry["source"],
            card=hardware_named(entry["card"]),
            model=shape_of(entry["model"]),
            version=version_of(entry["version"]),
            packages=PACKAGES,
            args=tuple(entry["args"]),
            load=BenchServeWorkload(**entry["load"], seed=SEED),
            metrics=entry["metrics"],
            fit=bool(entry["fit"]),
            weight=entry.get("weight", 1.0),
            fit_only=tuple(entry["fit"]) if isinstance(entry["fit"], list) else (),
        )
        for entry in entries
    ]


def h200() -> list[Row]:
    """Return the rows of both H200 tables; the four of the defaults are one row, their mean."""
    first = BenchServeWorkload(200, 50, 512, 512, seed=SEED)
    second = BenchServeWorkload(240, 256, 1024, 256, range_ratio=0.7, rate=20.0, seed=SEED)
    rows = table(REFERENCE / "h200_a05.jsonl", "h200", "Qwen/Qwen2.5-0.5B", first)
    return rows + table(REFERENCE / "h200_b7.jsonl", "h200", "Qwen/Qwen2.5-7B-Instruct", second)


def table(file: Path, card: str, model: str, load: BenchServeWorkload) -> list[Row]:
    """Return the rows of a table in the format of `reference/h200_*.jsonl`, equal configurations as their mean."""
    found: dict[tuple[str, ...], list[dict[str, float]]] = {}
    names: dict[tuple[str, ...], str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("ok", True):
            words = tuple(map(str, entry["args"]))
            found.setdefault(words, []).append(entry)
            names.setdefault(words, entry["name"])
    shape, hardware = shape_of(model), find_card(card)
    return [
        Row(
            id=f"{file.stem}-{names[words]}",
            group=file.stem,
            card=hardware,
            model=shape,
            version=(0, 25, 1),
            packages=H200_PACKAGES,
            args=words,
            load=load,
            metrics={name: float(np.mean([each[name] for each in entries])) for name in METRICS},
            completed=int(entries[0]["completed"]),
        )
        for words, entries in found.items()
    ]


def shape_of(model: str) -> ModelShape:
    """Return the shape of a known model, or of a folder's config.json."""
    known = known_model(model)
    if known is not None:
        return known
    try:
        return ModelShape.from_config_json(json.loads((Path(model) / "config.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, SpaceError) as error:
        raise SystemExit(f"--model {model!r}: no known model, and no folder with a config.json ({error})") from None


def version_of(text: str) -> tuple[int, ...]:
    """Return a version's numbers."""
    return tuple(int(part) for part in text.split("."))


def bench_load(words: str) -> BenchServeWorkload:
    """Return the load of arguments of `vllm bench serve`; those that say nothing of it are passed over."""
    parser = argparse.ArgumentParser(prog="vllm bench serve", allow_abbrev=False)
    for name in NUMBERS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    for name in ("random-range-ratio", "request-rate", "burstiness"):
        parser.add_argument(f"--{name}", type=float)
    said = vars(parser.parse_known_args(shlex.split(words))[0])
    rate = said["request_rate"]
    return BenchServeWorkload(
        num_prompts=said["num_prompts"] or 1000,
        max_concurrency=said["max_concurrency"],
        input_len=said["random_input_len"] or 1024,
        output_len=said["random_output_len"] or 128,
        range_ratio=said["random_range_ratio"] or 0.0,
        rate=None if rate is None or math.isinf(rate) else rate,
        burstiness=said["burstiness"] or 1.0,
        seed=said["seed"] or 0,
    )


def predict(row: Row, changes: Mapping[str, float] | None = None, warm: bool = False) -> dict[str, float | None]:
    """Return the predicted metrics of a row, without noise.

    Args:
        row: what was run.
        changes: parameters other than the stored ones.
        warm: whether the server had served something before.
    """
    known: Parameters = parameters_of(row.card.key)
    known = replace(known, **changes) if changes else known
    config = resolve_serve_config(row.args, {}, row.model, row.card, row.version, row.packages)
    machine = ConfiguredServer(config, known)
    run = machine.run(bench_serve_client(row.load, known.client_us * 1e-6), SEED, noise=False, warm=warm)
    return bench_metrics(run.requests, run.received_s, config.stream_interval, machine.speculative, (50, 99))


def errors(rows: Sequence[Row], predicted: Sequence[Mapping[str, float | None]], metric: str) -> list[float]:
    """Return the relative errors of a metric, for the rows that have it."""
    found = []
    for row, values in zip(rows, predicted, strict=True):
        measured, value = row.metrics.get(metric), values.get(metric)
        if measured is not None and value is not None:
            found.append(value / measured - 1)
    return found
