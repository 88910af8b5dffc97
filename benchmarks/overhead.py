"""How many seconds and how much memory does the tuner itself take? The servers are fakes; vLLM is not needed.

    python -m benchmarks.overhead [--trials 20] [--history 1000] [--json]

`tuner optimize` runs a study of `--trials` trials on a fake vLLM. The own time of a trial is what remains without
start-up and benchmark: its phases `own`, `check`, `collect` and `stop`, and the gap until the worker's next trial. A
simulated study of `--history` trials with TPE shows what a long history costs: a simulated trial takes no time, so the
time from one trial to the next is that of the suggestion, the simulator and the database. Memory is the peak of the
command's resident memory (VmHWM). `benchmarks.search.ask_latency` times suggestions alone.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tuner
from benchmarks.command_line import documented_parser
from benchmarks.text_table import print_table
from tests.fakes import install_fake_vllm
from tuner.use_cases.tiny_model import make_model

TAIL_CHARACTERS = 2000
TIMED_TRIALS = 25
"""The last trials of a long history, which are timed."""
TIMED_HELPS = 10
OWN_PHASES = ("own", "check", "collect", "stop")
FAKE_STUDY = ("--space", "cpu", "--users", "10", "--prompts", "40", "--input-len", "128", "--output-len", "64")
SERVER_FLAGS = ("--max-model-len", "1024")
MEMORY_POLL_S = 0.05
TRIAL_TARGET_S, MEMORY_TARGET_MB, HELP_TARGET_S = 1.0, 600.0, 0.5
CAPTION = (
    "The tuner's own cost: median (or the only value) and 95th percentile of n values, in the unit of the row; each "
    "should be at most its target"
)


@dataclass(frozen=True)
class CostFigure:
    """One row of the table.

    Attributes:
        name: what was measured.
        value: the median, or the only value.
        p95: the 95th percentile; None for a single value.
        unit: of the values.
        target: the largest median that is good enough; None without one.
        count: number of values.
    """

    name: str
    value: float
    p95: float | None
    unit: str
    target: float | None
    count: int

    @classmethod
    def over(cls, name: str, values: Sequence[float], unit: str, target: float | None = None) -> CostFigure:
        """Return the median and the 95th percentile of several values."""
        p95 = statistics.quantiles(values, n=20, method="inclusive")[18]
        return cls(name, statistics.median(values), p95, unit, target, len(values))


def measure_cost() -> None:
    """Measure everything and print the table."""
    parser = documented_parser(__doc__)
    parser.add_argument("--trials", type=int, default=20, help="trials of the study with fake servers [20]")
    parser.add_argument("--history", type=int, default=1000, help="trials of the simulated study [1000]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-overhead-") as name:
        folder = Path(name)
        figures = [*fake_figures(folder, arguments.trials), *history_figures(folder, arguments.history), help_figure()]
    if arguments.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    else:
        print_figures(figures)


def print_figures(figures: Sequence[CostFigure]) -> None:
    """Print the figures with their targets."""
    rows = [
        [
            f"{figure.name}, {figure.unit}",
            f"{figure.value:.3g}",
            "" if figure.p95 is None else f"{figure.p95:.3g}",
            "" if figure.target is None else f"≤ {figure.target:g}",
            str(figure.count),
        ]
        for figure in figures
    ]
    print_table(CAPTION, ["cost", "median", "p95", "target", "n"], rows)


def fake_figures(folder: Path, trials: int) -> list[CostFigure]:
    """Return the costs of a study whose servers are fakes."""
    model = make_model(folder / "model")
    vllm = install_fake_vllm(folder)
    options = [*FAKE_STUDY, "--vllm", str(vllm), "--model", str(model), "--workers", "1", "--", *SERVER_FLAGS]
    study, peak_mb = optimize(folder, "fake", trials, options)
    outcomes = sorted((each.outcome for each in study.trials if each.outcome), key=lambda outcome: outcome.started_at)
    own = [sum(outcome.timings.get(phase, 0.0) for phase in OWN_PHASES) for outcome in outcomes[:-1]]
    gaps = [(after.started_at - each.ended_at).total_seconds() for each, after in itertools.pairwise(outcomes)]
    both = [sum(times) for times in zip(own, gaps, strict=True)]
    return [
        CostFigure.over("own time of a trial, on the worker and in the gap", both, "s", TRIAL_TARGET_S),
        CostFigure.over("  on the worker: own + check + collect + stop", own, "s"),
        CostFigure.over("  gap until the worker's next trial", gaps, "s"),
        CostFigure(f"driver's peak memory, study of {trials} trials", peak_mb, None, "MB", MEMORY_TARGET_MB, 1),
    ]


def history_figures(folder: Path, history: int) -> list[CostFigure]:
    """Return the costs of the last trials of a long simulated study."""
    study, peak_mb = optimize(folder, "long", history, ["--engine", "simulated", "--sampler", "tpe"])
    created = [trial.created_at for trial in study.trials][-TIMED_TRIALS - 1 :]
    gaps = [(after - before).total_seconds() for before, after in itertools.pairwise(created)]
    with_history = f"with a history of {history} trials"
    return [
        CostFigure.over(f"from one simulated trial to the next {with_history}", gaps, "s", TRIAL_TARGET_S),
        CostFigure(f"driver's peak memory {with_history}", peak_mb, None, "MB", MEMORY_TARGET_MB, 1),
    ]


def tuner_executable() -> str:
    """Return the `tuner` command that is installed beside this Python.

    Raises:
        SystemExit: if it is not installed.
    """
    path = Path(sys.executable).with_name("tuner")
    if not path.is_file():
        raise SystemExit(f"{path}: not found; run this with the Python of the environment that has the tuner")
    return os.fspath(path)


def optimize(folder: Path, name: str, trials: int, options: Sequence[str]) -> tuple[tuner.Study, float]:
    """Run `tuner optimize`; return the study and the peak of the command's resident memory, in MB (10^6 bytes).

    Raises:
        SystemExit: if the command fails.
    """
    database = folder / f"{name}.db"
    argv = [tuner_executable(), "optimize", "--study", name, "--storage", os.fspath(database), "--plain"]
    argv += ["--trials", str(trials), "--confirm-rounds", "0", *options]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "TUNER_"))}
    environment = {**inherited, "TUNER_HOME": os.fspath(folder / "home")}
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            peak_mb = 0.0
            while process.poll() is None:
                peak_mb = max(peak_mb, peak_memory_mb(process.pid))
                time.sleep(MEMORY_POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        tail = log.read_text()[-TAIL_CHARACTERS:]
        raise SystemExit(f"tuner optimize ended with exit code {process.returncode}:\n{tail}")
    return tuner.load_study(name, os.fspath(database)), peak_mb


def peak_memory_mb(pid: int) -> float:
    """Return the peak of a process's resident memory in MB; 0 after its end."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def help_figure() -> CostFigure:
    """Time `tuner --help` with warm file caches."""
    walls_s = []
    for _ in range(TIMED_HELPS + 1):
        begun = time.perf_counter()
        subprocess.run([tuner_executable(), "--help"], check=True, stdout=subprocess.DEVNULL)
        walls_s.append(time.perf_counter() - begun)
    return CostFigure.over("tuner --help, with warm file caches", walls_s[1:], "s", HELP_TARGET_S)


if __name__ == "__main__":
    measure_cost()
