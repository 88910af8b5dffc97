"""Six configurations by `tuner optimize` and by `vllm bench sweep serve`, in one run on one machine without a GPU.

    python -m benchmarks.cost.against_sweep --vllm VENV/bin/vllm MODEL_FOLDER [--cache primed|cold]

max-num-seqs 8, 16, 32, each with and without --enforce-eager; one scored benchmark of 40 prompts of 128 + 64 tokens,
10 at a time, per configuration; dummy weights. Both get the same environment and a compile cache of their own.
`primed`: before it is timed, each runs the three compiled configurations once, unmeasured, in its own way, which also
warms the machine's file cache. `cold`: both start with empty caches. The walls are those of the whole commands, from
their start to their exit. Prints the walls, their ratio (target: at most 0.8), and each configuration's seconds and
throughput side by side. Whatever it started is ended when it ends, however it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from storage import normalise_url, open_store
from tuner.engines.vllm.environment import base_environment
from tuner.engines.vllm.executable import find_executable
from tuner.processes.family import MARK, end_family, find_family
from tuner.processes.identity import Identity, read_process, send_signal, wait_until_gone

TARGET = 0.8
SEQS = (8, 16, 32)
USERS, PROMPTS, INPUT_LEN, OUTPUT_LEN, SEED = 10, 40, 128, 64, 1000
SERVER = ("--load-format", "dummy", "--max-model-len", "1024")
DEFAULT_ENV = ("VLLM_CPU_KVCACHE_SPACE=1",)
INTERRUPTED_S = 60.0

Key = tuple[int, bool]
"""max-num-seqs, and whether eager."""


@dataclass(frozen=True)
class Measured:
    """One configuration: seconds until it was ready, seconds of the benchmark with its client, output tokens/s."""

    start_s: float
    benchmark_s: float
    throughput: float | None


@dataclass(frozen=True)
class Side:
    """One way to measure the six: the command's wall and what it found."""

    wall_s: float
    found: Mapping[Key, Measured]
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """What both sides share."""

    vllm: Path
    model: Path
    folder: Path
    variables: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        """Return the environment of both commands, without what differs between them."""
        kept = base_environment(os.environ).items()
        clean = {name: value for name, value in kept if not name.startswith(("TUNER_", "MLFLOW_"))}
        return {**clean, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def main() -> None:
    """Measure both and print."""
    arguments = parse()
    signal.signal(signal.SIGTERM, _leave)
    with ExitStack() as stack:
        if arguments.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner-sweep-")))
        else:
            folder = arguments.keep.resolve()
            folder.mkdir(parents=True)
        variables = tuple(arguments.env or DEFAULT_ENV)
        model = arguments.model.resolve()
        setting = Setting(find_executable(arguments.vllm), model, folder, variables)
        if arguments.dry_run:
            print(shlex.join(sweep_command(setting, "six", configurations(), 8000)))
            print(shlex.join(tuner_command(setting, "six", only_compiled=False)))
            return
        if arguments.cache == "primed":
            compiled = [key for key in configurations() if not key[1]]
            sweep(setting, "primed", compiled)
            tune(setting, "primed", only_compiled=True)
        swept = sweep(setting, "six", configurations())
        tuned = tune(setting, "six", only_compiled=False)
    ratio = tuned.wall_s / swept.wall_s
    if arguments.json:
        print(json.dumps(as_json(arguments.cache, swept, tuned), indent=1))
        return
    print(f"compile caches: {arguments.cache}")
    print(f"vllm bench sweep serve {swept.wall_s:.1f} s{swept.note}; tuner optimize {tuned.wall_s:.1f} s{tuned.note}")
    print(f"ratio {ratio:.2f}, target ≤ {TARGET}: {'met' if ratio <= TARGET else 'missed'}")
    print_table(swept.found, tuned.found)


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a model folder, served with dummy weights")
    parser.add_argument("--vllm", help="the vllm executable")
    parser.add_argument("--cache", choices=("primed", "cold"), default="primed")
    parser.add_argument("--env", action="append", metavar="NAME=VALUE", help=f"for every server [{DEFAULT_ENV[0]}]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for logs and results, to be kept")
    parser.add_argument("--dry-run", action="store_true", help="print the two commands")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def configurations() -> list[Key]:
    """Return the six."""
    return [(seqs, eager) for seqs in SEQS for eager in (False, True)]


def sweep_command(setting: Setting, name: str, keys: Sequence[Key], port: int) -> list[str]:
    """Write the sweep's parameter files and return its command."""
    serve_params, bench_params = setting.folder / f"serve-{name}.json", setting.folder / f"bench-{name}.json"
    named = {label(key): {"max_num_seqs": key[0], "enforce_eager": key[1]} for key in keys}
    serve_params.write_text(json.dumps(named))
    load = {"max_concurrency": USERS, "num_prompts": PROMPTS}
    lengths = {"random_input_len": INPUT_LEN, "random_output_len": OUTPUT_LEN, "seed": SEED}
    bench_params.write_text(json.dumps({"load": {**load, **lengths}}))
    vllm, model = os.fspath(setting.vllm), os.fspath(setting.model)
    serve = [vllm, "serve", model, "--host", "127.0.0.1", "--port", str(port), *SERVER]
    bench = [vllm, "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}/v1"]
    bench += ["--endpoint", "/completions", "--model", model, "--tokenizer", model, "--ignore-eos"]
    argv = [vllm, "bench", "sweep", "serve", "--serve-cmd", shlex.join(serve), "--bench-cmd", shlex.join(bench)]
    argv += ["--serve-params", os.fspath(serve_params), "--bench-params", os.fspath(bench_params), "--num-runs", "1"]
    argv += ["--server-ready-timeout", "900", "--output-dir", os.fspath(setting.folder / "sweep")]
    return [*argv, "--experiment-name", name]


def label(key: Key) -> str:
    """Return a configuration's name in the sweep."""
    return f"seqs{key[0]}-{'eager' if key[1] else 'compiled'}"


def sweep(setting: Setting, name: str, keys: Sequence[Key]) -> Side:
    """Run the sweep over some configurations."""
    argv = sweep_command(setting, name, keys, free_port())
    own = {"VLLM_CACHE_ROOT": os.fspath(setting.folder / "sweep-cache"), "VLLM_NO_USAGE_STATS": "1"}
    pairs = dict(pair.split("=", 1) for pair in setting.variables)
    done = call(argv, {**setting.environment(), **own, **pairs}, setting.folder, setting.folder / f"sweep-{name}.log")
    throughputs = read_sweep(setting.folder / "sweep" / name)
    if set(throughputs) != set(keys):
        raise SystemExit(f"the sweep ended with {done.code} and {len(throughputs)} of {len(keys)}:\n{done.tail()}")
    spans = sweep_spans(done.lines)
    found = {key: Measured(start, load, throughputs[key]) for key, (start, load) in zip(keys, spans, strict=True)}
    note = "" if done.code == 0 else f" (exit {done.code} after the last configuration; without pandas it ends so)"
    return Side(done.wall_s, found, note)


def read_sweep(folder: Path) -> dict[Key, float | None]:
    """Return the output throughput of each configuration that the sweep has a result of."""
    results = [json.loads(path.read_text()) for path in folder.glob("*/run=0.json")]
    return {
        (int(result["max_num_seqs"]), bool(result["enforce_eager"])): result["output_throughput"]
        for result in results
        if result["completed"] == PROMPTS
    }


def sweep_spans(lines: Sequence[tuple[float, str]]) -> list[tuple[float, float]]:
    """Return, for each configuration in order, the seconds of its start and of its benchmark."""
    spans: list[tuple[float, float]] = []
    server = load = 0.0
    for at, line in lines:
        if line.startswith("[BEGIN SERVER]"):
            server = at
        elif line.startswith("[BEGIN BENCHMARK]"):
            load = at
        elif line.startswith("[END BENCHMARK]"):
            spans.append((load - server, at - load))
    return spans


def tuner_command(setting: Setting, name: str, only_compiled: bool) -> list[str]:
    """Return the tuner's command for the six, or for the three that are compiled."""
    argv = [sys.executable, "-m", "tuner.cli.main", "optimize", "--vllm", os.fspath(setting.vllm)]
    argv += ["--model", os.fspath(setting.model), "--study", name, "--space", "sweep-cpu", "--workers", "1", "--plain"]
    argv += ["--trials", str(len(SEQS)), "--only", "max_num_seqs"] if only_compiled else ["--trials", "6"]
    argv += ["--baseline-repeats", "0", "--confirm-rounds", "0", "--users", str(USERS), "--prompts", str(PROMPTS)]
    argv += ["--input-len", str(INPUT_LEN), "--output-len", str(OUTPUT_LEN)]
    argv += ["--storage", os.fspath(setting.folder / f"{name}.db"), "-o", os.fspath(setting.folder / f"{name}.sh")]
    for pair in setting.variables:
        argv += ["--env", pair]
    return [*argv, "--", *SERVER]


def tune(setting: Setting, name: str, only_compiled: bool) -> Side:
    """Run `tuner optimize`."""
    argv = tuner_command(setting, name, only_compiled)
    environment = {**setting.environment(), "TUNER_HOME": os.fspath(setting.folder / "home")}
    done = call(argv, environment, setting.folder, setting.folder / f"tuner-{name}.log")
    wanted = len(SEQS) if only_compiled else len(configurations())
    found, edges = read_study(setting.folder / f"{name}.db", name) if done.code == 0 else ({}, None)
    if len(found) != wanted:
        raise SystemExit(f"the tuner ended with {done.code} and {len(found)} of {wanted}:\n{done.tail()}")
    assert edges is not None
    before, after = edges[0] - done.begun, done.begun + done.wall_s - edges[1]
    return Side(done.wall_s, found, f" ({before:.1f} s before its first trial, {after:.1f} s after its last)")


def read_study(database: Path, name: str) -> tuple[dict[Key, Measured], tuple[float, float]]:
    """Return what the study measured, and when its first trial began and its last one ended (seconds since 1970)."""
    store = open_store(normalise_url(os.fspath(database)))
    try:
        outcomes = [(r.config, r.outcome) for r in store.trials(name, finished=True)]
    finally:
        store.close()
    found = {}
    begun, ended = [], []
    for config, outcome in outcomes:
        if outcome is not None:
            begun.append(outcome.started_at.timestamp())
            ended.append(outcome.ended_at.timestamp())
        if outcome is None or not outcome.succeeded or outcome.metric("success_rate") != 1.0:
            continue
        start = outcome.timings.get("launch", 0.0) + outcome.timings.get("ready", 0.0)
        key = (int(config["max_num_seqs"] or 0), bool(config.get("enforce_eager", False)))
        found[key] = Measured(start, outcome.timings.get("benchmark", 0.0), outcome.metric("output_throughput"))
    return found, (min(begun, default=0.0), max(ended, default=0.0))


@dataclass(frozen=True)
class Done:
    """A command that ended: when it began (seconds since 1970), its wall, its exit code, its lines with the seconds at
    which they came, its log."""

    begun: float
    wall_s: float
    code: int
    lines: list[tuple[float, str]]
    log: Path

    def tail(self) -> str:
        """Return its last words."""
        said = "\n".join(line for _, line in self.lines[-15:])
        return f"{said}\n{self.log.read_text(errors='replace')[-2000:]}"


def call(argv: Sequence[str], environment: Mapping[str, str], cwd: Path, log: Path) -> Done:
    """Run a command to its end; nothing that it started lives on when this returns or raises."""
    mark = uuid.uuid4().hex
    begun_at, begun = time.time(), time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        lines: list[tuple[float, str]] = []
        seen = read_process(process.pid)
        assert seen is not None  # a child that is not reaped is in the table
        try:
            for line in process.stdout or ():
                lines.append((time.monotonic() - begun, line.rstrip("\n")))
            code = process.wait()
            wall = time.monotonic() - begun
        finally:
            end_all(process, seen.identity, mark)
    with log.open("a") as text:
        text.writelines(f"{at:8.1f} {line}\n" for at, line in lines)
    return Done(begun_at, wall, code, lines, log)


def end_all(process: subprocess.Popen[str], leader: Identity, mark: str) -> None:
    """End a command, as Ctrl-C does if it still runs, and then all that it started."""
    known: set[Identity] = set()

    def find() -> set[Identity]:
        known.update(find_family(leader, mark, known))
        return find_family(leader, mark, known)

    find()
    if send_signal(leader, signal.SIGINT):
        wait_until_gone({leader}, INTERRUPTED_S)
    survivors = end_family(find, leader, 0).survivors
    process.wait()
    if survivors:
        print(f"processes {', '.join(str(left.pid) for left in survivors)} could not be ended", file=sys.stderr)


def free_port() -> int:
    """Return a port of the loopback that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def print_table(swept: Mapping[Key, Measured], tuned: Mapping[Key, Measured]) -> None:
    """Print the configurations side by side: sweep, tuner."""
    print(f"{'':<16}{'start, s':>16}{'benchmark, s':>18}{'output tok/s':>20}")
    print(
        f"{'configuration':<16}"
        + f"{'sweep':>9}{'tuner':>7}"
        + f"{'sweep':>11}{'tuner':>7}"
        + f"{'sweep':>12}{'tuner':>8}"
    )
    for key in configurations():
        one, two = swept[key], tuned[key]
        print(
            f"{label(key):<16}{one.start_s:>9.1f}{two.start_s:>7.1f}{one.benchmark_s:>11.1f}{two.benchmark_s:>7.1f}"
            f"{one.throughput or 0:>12.0f}{two.throughput or 0:>8.0f}"
        )


def as_json(cache: str, swept: Side, tuned: Side) -> dict[str, object]:
    """Return both sides as plain data."""
    sides = {
        name: {
            "wall_s": side.wall_s,
            "note": side.note.strip(),
            "configurations": {label(key): vars(one) for key, one in side.found.items()},
        }
        for name, side in (("sweep", swept), ("tuner", tuned))
    }
    ratio = tuned.wall_s / swept.wall_s
    return {"cache": cache, "ratio": ratio, "target": TARGET, **sides}


if __name__ == "__main__":
    main()
