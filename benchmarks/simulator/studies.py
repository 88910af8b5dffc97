"""The recorded studies on H200s as rows: each measured trial of a search, with the traffic that the study sent.

The CSV files in docs/reports/data have configurations and metrics, but no flags. `flags_of` translates the parameters
of the search space at that time, some of which the present one no longer has.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.simulator.rows import COMPARED_METRICS, H200_PACKAGES, Row, shape_of
from search_spaces import hardware_named
from search_spaces.render import reachable_sizes
from tuner.workloads.presets import load_preset
from tuner.workloads.spec import SingleWorkload, Suite
from tuner.workloads.traffic import Traffic

DATA_FOLDER = Path(__file__).parents[2] / "docs" / "reports" / "data"
STUDY_WEIGHT = 5.0
"""Sum of the squared weights of a study's trials, many of which are nearly the same configuration."""
RATE_20 = {
    "arrivals": {"process": "poisson", "rate": 20},
    "requests": 240,
    "max_in_flight": 256,
    "classes": {"all": {"input": {"uniform": [308, 1740]}, "output": {"uniform": [77, 435]}}},
}
"""The traffic of all studies of 7B (docs/reports/2026-11-24-h200-qwen-7b.md)."""
FLAGS = {
    "max_model_len": "--max-model-len",
    "performance_mode": "--performance-mode",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "block_size": "--block-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "optimization_level": "--optimization-level",
    "attention_backend": "--attention-backend",
    "dtype": "--dtype",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "scheduling_policy": "--scheduling-policy",
    "stream_interval": "--stream-interval",
    "api_server_count": "--api-server-count",
    "capture_size_max": "--max-cudagraph-capture-size",
}
SWITCHES = {
    "chunked_prefill": "enable-chunked-prefill",
    "prefix_caching": "enable-prefix-caching",
    "async_scheduling": "async-scheduling",
}
SPECULATION = {
    "ngram_tokens": "num_speculative_tokens",
    "ngram_max": "prompt_lookup_max",
    "ngram_min": "prompt_lookup_min",
}


@dataclass(frozen=True)
class RecordedStudy:
    """One study on an H200.

    Attributes:
        name: the CSV file's name without suffix.
        model: the model's name.
        workload: what each trial of the search was sent.
        arguments: the arguments of every server.
        users: the largest number of requests in work, for the capture sizes `exact`.
    """

    name: str
    model: str
    workload: SingleWorkload
    arguments: tuple[str, ...]
    users: int


def recorded_studies() -> list[RecordedStudy]:
    """Return the studies, in the order in which they ran."""
    closed = load_preset("qwen2.5-0.5b-t4").workload
    assert not isinstance(closed, Suite)
    traffic = Traffic.model_validate(RATE_20)
    studies = [RecordedStudy("h200", "Qwen/Qwen2.5-0.5B", closed, (), 50)]
    for name in ("h200-7b", "h200-7b-again", "h200-7b-12", "h200-7b-one", "h200-7b-8"):
        studies.append(RecordedStudy(name, "Qwen/Qwen2.5-7B-Instruct", traffic, ("--kv-cache-memory-bytes", "8G"), 240))
    return studies


def study_rows(study: RecordedStudy) -> list[Row]:
    """Return the trials of a study's search that worked, without the measurements of the rounds."""
    return [
        _row(study, entry)
        for entry in _entries(study)
        if not entry.get("failure_kind") and entry["output_throughput"] and entry["round"] == "0"
    ]


def weighted_trials() -> list[Row]:
    """Return the trials of all searches for a fit; each study has the same weight."""
    by_study = [study_rows(study) for study in recorded_studies()]
    return [replace(row, weight=math.sqrt(STUDY_WEIGHT / len(rows))) for rows in by_study for row in rows]


def _entries(study: RecordedStudy) -> Iterator[dict[str, str]]:
    with (DATA_FOLDER / f"{study.name}.csv").open(encoding="utf-8", newline="") as text:
        yield from csv.DictReader(text)


def _row(study: RecordedStudy, entry: Mapping[str, str]) -> Row:
    config = {name.removeprefix("config."): value for name, value in entry.items() if name.startswith("config.")}
    return Row(
        id=f"{study.name}-{entry['number']}",
        group=study.name,
        card=hardware_named("h200"),
        model=shape_of(study.model),
        version=(0, 25, 1),
        packages=H200_PACKAGES,
        args=(*study.arguments, *flags_of({name: value for name, value in config.items() if value}, study.users)),
        workload=study.workload,
        metrics={name: float(entry[name]) for name in COMPARED_METRICS if entry[name]},
        repeats=int(entry["repeats"]),
        warm=True,
    )


def flags_of(config: Mapping[str, str], users: int) -> tuple[str, ...]:
    """Return the flags of `vllm serve` for a configuration of a study's CSV file.

    Args:
        config: the parameters that are set, as text.
        users: the largest number of requests in work.
    """
    words: list[str] = []
    for name, flag in FLAGS.items():
        if name in config:
            words += [flag, config[name]]
    for name, flag in SWITCHES.items():
        if name in config:
            words.append(f"--{flag}" if config[name] == "True" else f"--no-{flag}")
    if config.get("cudagraph_mode") == "eager":
        words.append("--enforce-eager")
    elif "cudagraph_mode" in config:
        words += ["--compilation-config", json.dumps({"cudagraph_mode": config["cudagraph_mode"]})]
    tokens = 1
    if config.get("speculative") == "ngram":
        own = {key: int(config[name]) for name, key in SPECULATION.items() if name in config}
        tokens += own["num_speculative_tokens"]
        words += ["--speculative-config", json.dumps({"method": "ngram", **own})]
    if config.get("capture_sizes") == "exact":
        sequences = min(users, int(config.get("max_num_seqs", users)))
        words += ["--cudagraph-capture-sizes", *map(str, reachable_sizes(sequences, tokens))]
    return tuple(words)
