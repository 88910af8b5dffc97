"""How many seconds and how much memory does the tuner itself take? The servers are fakes; vLLM is not needed.

    python -m benchmarks.cost.overhead [--trials 20] [--history 1000] [--json]

A study of `--trials` trials runs with `tuner optimize`. The own time of a trial is what remains without start-up and
benchmark: its phases `own`, `check`, `collect` and `stop`, and the gap on the driver until the worker's next trial.
The study's database is then filled up to `--history` trials, and `tuner optimize` continues for ten more. Memory is the
peak of the command's resident memory (VmHWM). Ask and tell are timed in the search space of vLLM on a T4, with
`--history` trials in SQLite. The exit code is always 0.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import optuna

from benchmarks.command_line import documented_parser
from benchmarks.cost.made_up_history import MADE_UP_LABEL, MadeUpTrials, fill_study, random_verdict
from benchmarks.text_table import print_table
from records.trials import Provenance, TrialRecord
from search_spaces import Context, ResolvedSpace, hardware_named, load_space
from storage import normalise_url, open_store
from tests.fakes import install_fake_vllm
from tuner.engines.base import EngineInfo
from tuner.engines.vllm.toolbox import installation
from tuner.settings.study import StudySettings
from tuner.study.optuna_study import OptunaStudy
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import StudySpec
from tuner.use_cases.devices import find_devices

STUDY_NAME = "overhead"
TAIL_CHARACTERS = 2000
MORE_TRIALS = 10
"""Trials after the history."""
TIMED_ASKS = 25
TIMED_HELPS = 10
OWN_PHASES = ("own", "check", "collect", "stop")
CLOSED_LOOP = StudySettings(max_concurrency=10, num_prompts=40, input_len=128, output_len=64)
SERVER_FLAGS = ("--max-model-len", "1024")
MODEL_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
MEMORY_POLL_S = 0.05
OBJECTIVES = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
SLOS = ("p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1")
TRIAL_TARGET_S, MEMORY_TARGET_MB, ASK_TARGET_MS, HELP_TARGET_S = 1.0, 600.0, 100.0, 0.5
OVERHEAD_CAPTION = (
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
    parser.add_argument("--trials", type=int, default=20, help="trials of the first study [20]")
    parser.add_argument("--history", type=int, default=1000, help="trials in the database for the rest [1000]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="tuner-overhead-") as name:
        figures = [
            *study_figures(Path(name), arguments.trials, arguments.history),
            *ask_figures(Path(name), arguments.history),
            help_figure(),
        ]
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
    print_table(OVERHEAD_CAPTION, ["cost", "median", "p95", "target", "n"], rows)


def study_figures(folder: Path, trials: int, history: int) -> list[CostFigure]:
    """Run a study on the fake, fill its database, and continue it.

    Args:
        folder: an empty folder.
        trials: number of trials of the first run.
        history: number of trials in the database before the second run.

    Raises:
        SystemExit: if the second run lacks trials.
    """
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL_CONFIG))
    vllm = install_fake_vllm(folder)
    first_peak_mb = run_fake_study(folder, vllm, model, trials)
    few = own_times(study_trials(folder))
    pattern = next(r.outcome for r in study_trials(folder) if r.outcome is not None and r.outcome.succeeded)
    fill_study(normalise_url(str(folder / "overhead.db")), study_spec(folder, vllm, model), pattern, history)
    peak_mb = run_fake_study(folder, vllm, model, history + MORE_TRIALS)
    many = own_times([record for record in study_trials(folder) if record.label != MADE_UP_LABEL][trials:])
    if len(many) < MORE_TRIALS - 1:
        counts = f"{len(many) + 1} of {MORE_TRIALS} trials"
        raise SystemExit(f"study {STUDY_NAME}: only {counts} ran after a history of {history}")
    gap = "  gap until the worker's next trial"
    with_history = f"with a history of {history} trials"
    return [
        CostFigure.over(
            "own time of a trial, on the worker and in the gap", [sum(t) for t in few], "s", TRIAL_TARGET_S
        ),
        CostFigure.over("  on the worker: own + check + collect + stop", [own for own, _ in few], "s"),
        CostFigure.over(gap, [gap_s for _, gap_s in few], "s"),
        CostFigure.over(f"own time {with_history}", [sum(t) for t in many], "s", TRIAL_TARGET_S),
        CostFigure.over(gap, [gap_s for _, gap_s in many], "s"),
        CostFigure(f"driver's peak memory, study of {trials} trials", first_peak_mb, None, "MB", MEMORY_TARGET_MB, 1),
        CostFigure(f"driver's peak memory {with_history}", peak_mb, None, "MB", MEMORY_TARGET_MB, 1),
    ]


def study_spec(folder: Path, vllm: Path, model: Path) -> StudySpec:
    """Return the study that `run_fake_study` runs."""
    settings = replace(
        CLOSED_LOOP, study=STUDY_NAME, model=str(model), space="cpu", server_arguments=SERVER_FLAGS, search_load=1.0
    )
    devices = find_devices(1)
    info = EngineInfo("vllm", installation(vllm, folder / "home").version, str(vllm), None, Provenance.MEASURED)
    return build_spec(plan_study(settings, on_cpu=not devices.gpus), info, devices.profile, folder)


def tuner_executable() -> str:
    """Return the `tuner` command that is installed beside this Python.

    Raises:
        SystemExit: if it is not installed.
    """
    path = Path(sys.executable).with_name("tuner")
    if not path.is_file():
        raise SystemExit(f"{path}: not found; run this with the Python of the environment that has the tuner")
    return os.fspath(path)


def run_fake_study(folder: Path, vllm: Path, model: Path, trials: int) -> float:
    """Run `tuner optimize` up to `trials` trials and return the peak of its resident memory, in MB (10^6 bytes).

    Raises:
        SystemExit: if the command fails.
    """
    argv = [tuner_executable(), "optimize", "--vllm", str(vllm), "--model", str(model), "--study", STUDY_NAME]
    argv += ["--space", "cpu", "--trials", str(trials), "--confirm-rounds", "0", "--workers", "1", "--plain"]
    argv += ["--storage", "overhead.db"]
    argv += ["--users", str(CLOSED_LOOP.max_concurrency), "--prompts", str(CLOSED_LOOP.num_prompts)]
    argv += [
        "--input-len",
        str(CLOSED_LOOP.input_len),
        "--output-len",
        str(CLOSED_LOOP.output_len),
        "--",
        *SERVER_FLAGS,
    ]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "TUNER_"))}
    environment = {**inherited, "TUNER_HOME": os.fspath(folder / "home")}
    log = folder / f"optimize-{trials}.log"
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
    return peak_mb


def peak_memory_mb(pid: int) -> float:
    """Return the peak of a process's resident memory in MB; 0 after its end."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def study_trials(folder: Path) -> list[TrialRecord]:
    """Return the study's trials."""
    store = open_store(normalise_url(str(folder / "overhead.db")))
    try:
        return store.trials(STUDY_NAME)
    finally:
        store.close()


def own_times(trials: Sequence[TrialRecord]) -> list[tuple[float, float]]:
    """Return the own seconds of each trial but the last: on the worker, and in the gap until the next trial."""
    outcomes = sorted((r.outcome for r in trials if r.outcome is not None), key=lambda outcome: outcome.started_at)
    return [
        (
            sum(trial.timings.get(phase, 0.0) for phase in OWN_PHASES),
            (following.started_at - trial.ended_at).total_seconds(),
        )
        for trial, following in itertools.pairwise(outcomes)
    ]


def ask_figures(folder: Path, history: int) -> list[CostFigure]:
    """Time ask and tell in the search space of vLLM on a T4, with `history` trials in SQLite."""
    url, name = normalise_url(str(folder / "ask-and-tell.db")), "ask-and-tell"
    space = t4_space()
    study = OptunaStudy(url, name, space, make_goals(OBJECTIVES, SLOS).objectives, seed=0)
    made_up = MadeUpTrials(optuna.load_study(study_name=name, storage=url))
    for _ in range(history):
        trial = made_up.ask()
        made_up.tell(trial, space.suggest(trial), random_verdict(made_up.rng))
    made_up.add_to_study()
    asks_ms, tells_ms = [], []
    for _ in range(TIMED_ASKS + 1):
        begun = time.perf_counter()
        suggestion = study.ask()
        asked = time.perf_counter()
        study.tell(suggestion.number, random_verdict(made_up.rng))
        asks_ms.append((asked - begun) * 1e3)
        tells_ms.append((time.perf_counter() - asked) * 1e3)
    both_ms = [ask_ms + tell_ms for ask_ms, tell_ms in zip(asks_ms, tells_ms, strict=True)]
    title = f"ask and tell with {history} trials, space of vLLM on a T4"
    return [
        CostFigure.over(title, both_ms[1:], "ms", ASK_TARGET_MS),
        CostFigure.over("  ask", asks_ms[1:], "ms"),
        CostFigure.over("  tell", tells_ms[1:], "ms"),
    ]


def t4_space() -> ResolvedSpace:
    """Return the search space of vLLM, resolved for a T4."""
    context = Context(
        hardware=hardware_named("t4"),
        engine_version="0.25.1",
        flags=None,
        model=None,
        packages=frozenset({"arctic_inference"}),
        concurrency=50,
        input_len=512,
        output_len=512,
    )
    return load_space("vllm").resolve(context)


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
