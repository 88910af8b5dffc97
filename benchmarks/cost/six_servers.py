"""Six server configurations, measured by `vllm bench sweep serve` and by `tuner optimize`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.command_line import environment_variables
from benchmarks.cost.commands import run_command, unused_port
from storage import normalise_url, open_store
from tuner.engines.server.environment import base_environment

MAX_NUM_SEQS = (8, 16, 32)
USERS, PROMPTS, INPUT_LEN, OUTPUT_LEN, SEED = 10, 40, 128, 64, 1000
SERVE_ARGUMENTS = ("--load-format", "dummy", "--max-model-len", "1024")
READY_LIMIT_S = 900


class SweptConfig(NamedTuple):
    """One of the six configurations."""

    max_num_seqs: int
    eager: bool

    @property
    def label(self) -> str:
        """The name in the sweep and in tables."""
        return f"seqs{self.max_num_seqs}-{'eager' if self.eager else 'compiled'}"


SIX = tuple(SweptConfig(seqs, eager) for seqs in MAX_NUM_SEQS for eager in (False, True))
COMPILED = tuple(config for config in SIX if not config.eager)


@dataclass(frozen=True)
class ConfigCost:
    """The times and the throughput of one configuration.

    Attributes:
        start_s: seconds until the server was ready.
        benchmark_s: seconds of the benchmark with its client.
        throughput: output tokens/s.
    """

    start_s: float
    benchmark_s: float
    throughput: float | None


@dataclass(frozen=True)
class CommandCost:
    """The wall-clock of one command, and the costs of its configurations.

    Attributes:
        wall_s: wall-clock seconds of the command, from its start to its exit.
        by_config: the cost of each configuration.
        note: a remark on the command, for people.
    """

    wall_s: float
    by_config: Mapping[SweptConfig, ConfigCost]
    note: str = ""


@dataclass(frozen=True)
class SharedSetup:
    """The settings that both commands share.

    Attributes:
        vllm: the vllm executable.
        model: a model folder.
        folder: for logs and results.
        variables: of each server's environment, as NAME=VALUE.
    """

    vllm: Path
    model: Path
    folder: Path
    variables: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        """Return the common environment of both commands."""
        inherited = base_environment(os.environ).items()
        clean = {name: value for name, value in inherited if not name.startswith(("TUNER_", "MLFLOW_"))}
        return {**clean, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def sweep_command(setup: SharedSetup, name: str, configs: Sequence[SweptConfig], port: int) -> list[str]:
    """Write the sweep's parameter files and return its command."""
    serve_params, bench_params = setup.folder / f"serve-{name}.json", setup.folder / f"bench-{name}.json"
    named = {each.label: {"max_num_seqs": each.max_num_seqs, "enforce_eager": each.eager} for each in configs}
    serve_params.write_text(json.dumps(named))
    workload = {"max_concurrency": USERS, "num_prompts": PROMPTS, "seed": SEED}
    lengths = {"random_input_len": INPUT_LEN, "random_output_len": OUTPUT_LEN}
    bench_params.write_text(json.dumps({"load": {**workload, **lengths}}))
    vllm, model = os.fspath(setup.vllm), os.fspath(setup.model)
    serve = [vllm, "serve", model, "--host", "127.0.0.1", "--port", str(port), *SERVE_ARGUMENTS]
    bench = [vllm, "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}/v1"]
    bench += ["--endpoint", "/completions", "--model", model, "--tokenizer", model, "--ignore-eos"]
    argv = [vllm, "bench", "sweep", "serve", "--serve-cmd", shlex.join(serve), "--bench-cmd", shlex.join(bench)]
    argv += ["--serve-params", os.fspath(serve_params), "--bench-params", os.fspath(bench_params), "--num-runs", "1"]
    argv += ["--server-ready-timeout", str(READY_LIMIT_S), "--output-dir", os.fspath(setup.folder / "sweep")]
    return [*argv, "--experiment-name", name]


def run_sweep(setup: SharedSetup, name: str, configs: Sequence[SweptConfig]) -> CommandCost:
    """Run the sweep over some of the configurations.

    Raises:
        SystemExit: if a result is missing.
    """
    argv = sweep_command(setup, name, configs, unused_port())
    own = {"VLLM_CACHE_ROOT": os.fspath(setup.folder / "sweep-cache"), "VLLM_NO_USAGE_STATS": "1"}
    environment = {**setup.environment(), **own, **environment_variables(setup.variables)}
    finished = run_command(argv, environment, setup.folder, setup.folder / f"sweep-{name}.log")
    throughputs = _sweep_throughputs(setup.folder / "sweep" / name)
    if set(throughputs) != set(configs):
        counts = f"{len(throughputs)} of {len(configs)} results"
        raise SystemExit(f"the sweep ended with exit code {finished.code} and {counts}:\n{finished.tail()}")
    spans = sweep_spans(finished.lines)
    by_config = {
        config: ConfigCost(start_s, benchmark_s, throughputs[config])
        for config, (start_s, benchmark_s) in zip(configs, spans, strict=True)
    }
    note = "" if finished.code == 0 else f" (exit code {finished.code} after the last one, as without pandas)"
    return CommandCost(finished.wall_s, by_config, note)


def _sweep_throughputs(folder: Path) -> dict[SweptConfig, float | None]:
    """Return the output throughput of each configuration whose result is complete, in tokens/s."""
    results = [json.loads(path.read_text()) for path in folder.glob("*/run=0.json")]
    return {
        SweptConfig(int(result["max_num_seqs"]), bool(result["enforce_eager"])): result["output_throughput"]
        for result in results
        if result["completed"] == PROMPTS
    }


def sweep_spans(lines: Sequence[tuple[float, str]]) -> list[tuple[float, float]]:
    """Return the seconds of the start and of the benchmark of each configuration, in the order of the sweep."""
    spans: list[tuple[float, float]] = []
    server = benchmark = 0.0
    for at, line in lines:
        if line.startswith("[BEGIN SERVER]"):
            server = at
        elif line.startswith("[BEGIN BENCHMARK]"):
            benchmark = at
        elif line.startswith("[END BENCHMARK]"):
            spans.append((benchmark - server, at - benchmark))
    return spans


def tuner_command(setup: SharedSetup, name: str, configs: Sequence[SweptConfig]) -> list[str]:
    """Return the tuner's command for all six configurations, or for the compiled ones."""
    argv = [sys.executable, "-m", "tuner.cli.main", "optimize", "--vllm", os.fspath(setup.vllm)]
    argv += ["--model", os.fspath(setup.model), "--study", name, "--space", "sweep-cpu", "--workers", "1", "--plain"]
    argv += ["--trials", str(len(configs)), *(["--only", "max_num_seqs"] if configs == COMPILED else [])]
    argv += ["--baseline-repeats", "0", "--confirm-rounds", "0", "--users", str(USERS), "--prompts", str(PROMPTS)]
    argv += ["--input-len", str(INPUT_LEN), "--output-len", str(OUTPUT_LEN)]
    argv += ["--storage", os.fspath(setup.folder / f"{name}.db"), "-o", os.fspath(setup.folder / f"{name}.sh")]
    for pair in setup.variables:
        argv += ["--env", pair]
    return [*argv, "--", *SERVE_ARGUMENTS]


def run_tuner(setup: SharedSetup, name: str, configs: Sequence[SweptConfig]) -> CommandCost:
    """Run `tuner optimize` over all six configurations, or over the compiled ones.

    Raises:
        SystemExit: if a trial is missing.
    """
    environment = {**setup.environment(), "TUNER_HOME": os.fspath(setup.folder / "home")}
    argv = tuner_command(setup, name, configs)
    finished = run_command(argv, environment, setup.folder, setup.folder / f"tuner-{name}.log")
    by_config: dict[SweptConfig, ConfigCost] = {}
    first_begun = last_ended = finished.begun
    if finished.code == 0:
        by_config, first_begun, last_ended = _study_costs(setup.folder / f"{name}.db", name)
    if len(by_config) != len(configs):
        counts = f"{len(by_config)} of {len(configs)} trials"
        raise SystemExit(f"the tuner ended with exit code {finished.code} and {counts}:\n{finished.tail()}")
    before_s, after_s = first_begun - finished.begun, finished.begun + finished.wall_s - last_ended
    note = f" ({before_s:.1f} s before its first trial, {after_s:.1f} s after its last)"
    return CommandCost(finished.wall_s, by_config, note)


def _study_costs(database: Path, name: str) -> tuple[dict[SweptConfig, ConfigCost], float, float]:
    """Return the cost of each successful trial, the first begin and the last end (in seconds since 1970)."""
    store = open_store(normalise_url(os.fspath(database)))
    try:
        trials = [(record.config, record.outcome) for record in store.trials(name, finished=True)]
    finally:
        store.close()
    by_config: dict[SweptConfig, ConfigCost] = {}
    begun, ended = [], []
    for config, outcome in trials:
        if outcome is None:
            continue
        begun.append(outcome.started_at.timestamp())
        ended.append(outcome.ended_at.timestamp())
        if outcome.succeeded and outcome.metric("success_rate") == 1.0:
            swept = SweptConfig(int(config["max_num_seqs"] or 0), bool(config.get("enforce_eager", False)))
            start_s = outcome.timings.get("launch", 0.0) + outcome.timings.get("ready", 0.0)
            benchmark_s = outcome.timings.get("benchmark", 0.0)
            by_config[swept] = ConfigCost(start_s, benchmark_s, outcome.metric("output_throughput"))
    return by_config, min(begun, default=0.0), max(ended, default=0.0)
