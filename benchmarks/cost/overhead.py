"""What does the tuner itself cost? No vLLM is needed: the servers are the tests' fake.

    python -m benchmarks.cost.overhead [--trials 20] [--history 1000] [--json]

Own time of a trial, without launch and load: its timings `own`, `check`, `collect` and `stop`, and the gap on the
driver between its end and the start of the next trial on the same worker; from the database of a study of `--trials`
trials by `tuner optimize`. Then the study's database is filled up to `--history` trials and `tuner optimize` goes on
for ten more: the gap again, and the peak of the command's resident memory (VmHWM). Ask and tell are timed on the
space for vLLM on a T4 with as many trials in its SQLite file. `tuner --help` is timed warm. Prints each figure with
its target and exits 0 whatever they are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import optuna

from search_spaces import Context, ResolvedSpace, hardware_named, load_space
from storage import normalise_url, open_store
from storage.records import Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord, Verdict
from tests.fakes import install_fake_vllm
from tuner.engines.base import EngineInfo
from tuner.engines.vllm.executable import version_of
from tuner.study.builder import Request, draft, finish
from tuner.study.optuna_study import OptunaStudy
from tuner.study.resolve_workload import make_judge
from tuner.study.spec import StudySpec
from tuner.use_cases.devices import find_devices

STUDY = "overhead"
MORE = 10
ASKS = 25
HELPS = 10
PHASES = ("own", "check", "collect", "stop")
LOAD = {"max_concurrency": 10, "num_prompts": 40, "input_len": 128, "output_len": 64}
SERVER = ("--max-model-len", "1024")
CONFIG = {
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


@dataclass(frozen=True)
class Figure:
    """One line of the table: the median (or the only value), the 95th percentile if there are several, the target."""

    name: str
    value: float
    p95: float | None
    unit: str
    target: float | None
    of: int

    @classmethod
    def over(cls, name: str, values: Sequence[float], unit: str, target: float | None) -> Figure:
        """Return the median and the 95th percentile of several values."""
        p95 = statistics.quantiles(values, n=20, method="inclusive")[18]
        return cls(name, statistics.median(values), p95, unit, target, len(values))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=20, help="trials of the first study")
    parser.add_argument("--history", type=int, default=1000, help="trials in the database for the rest")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="tuner-overhead-") as name:
        figures = [
            *study_figures(Path(name), arguments.trials, arguments.history),
            *ask_and_tell(Path(name), arguments.history),
            help_wall(),
        ]
    if arguments.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
    else:
        print_table(figures)


def print_table(figures: Sequence[Figure]) -> None:
    """Print the figures with their targets."""
    print(f"{'':<60}{'median':>9}{'p95':>9}{'target':>9}{'of':>6}")
    for figure in figures:
        p95 = "" if figure.p95 is None else f"{figure.p95:.3g}"
        target = "" if figure.target is None else f"≤ {figure.target:g}"
        print(f"{figure.name + ', ' + figure.unit:<60}{figure.value:>9.3g}{p95:>9}{target:>9}{figure.of:>6}")


def study_figures(folder: Path, trials: int, history: int) -> list[Figure]:
    """Run a study of `trials` on the fake, fill its database up to `history`, let it go on."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    vllm = install_fake_vllm(folder)
    first_peak = optimize(folder, vllm, model, trials)
    few = own_times(records(folder))
    spec = fill(folder, vllm, model, history)
    peak = optimize(folder, vllm, model, history + MORE)
    many = own_times([record for record in records(folder) if record.label != "filled"][trials:])
    if len(many) < MORE - 1:
        raise SystemExit(
            f"study {spec.name}: only {len(many) + 1} of {MORE} trials were run with {history} before them"
        )
    return [
        Figure.over("own time of a trial: worker and gap", [own + gap for own, gap in few], "s", 1.0),
        Figure.over("  on the worker: own + check + collect + stop", [own for own, _ in few], "s", None),
        Figure.over("  gap to the worker's next trial", [gap for _, gap in few], "s", None),
        Figure.over(f"own time with {history} trials before", [own + gap for own, gap in many], "s", 1.0),
        Figure.over("  gap to the worker's next trial", [gap for _, gap in many], "s", None),
        Figure(f"driver's peak memory, study of {trials}", first_peak, None, "MB", 600.0, 1),
        Figure(f"driver's peak memory, {history} trials before", peak, None, "MB", 600.0, 1),
    ]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of `tuner optimize`: caches in `folder`, MLflow embedded."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "TUNER_"))}
    return {**kept, "TUNER_HOME": os.fspath(folder / "home")}


def command() -> str:
    """Return the `tuner` that is installed beside this Python."""
    path = Path(sys.executable).with_name("tuner")
    if not path.is_file():
        raise SystemExit(f"there is no {path}; run this by the Python of the environment that has the tuner")
    return os.fspath(path)


def optimize(folder: Path, vllm: Path, model: Path, trials: int) -> float:
    """Run `tuner optimize` up to `trials` trials and return the peak of its resident memory in MB (10^6 bytes)."""
    argv = [command(), "optimize", "--vllm", str(vllm), "--model", str(model), "--study", STUDY, "--space", "cpu"]
    argv += ["--trials", str(trials), "--confirm-rounds", "0", "--workers", "1", "--plain", "--storage", "overhead.db"]
    argv += ["--users", str(LOAD["max_concurrency"]), "--prompts", str(LOAD["num_prompts"])]
    argv += ["--input-len", str(LOAD["input_len"]), "--output-len", str(LOAD["output_len"]), "--", *SERVER]
    log = folder / f"optimize-{trials}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(argv, cwd=folder, env=environment(folder), stdout=file, stderr=subprocess.STDOUT)
        try:
            peak = 0.0
            while process.poll() is None:
                peak = max(peak, peak_memory(process.pid))
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        raise SystemExit(f"`tuner optimize` ended with {process.returncode}:\n{log.read_text()[-2000:]}")
    return peak


def peak_memory(pid: int) -> float:
    """Return the peak of a process's resident memory in MB; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def records(folder: Path) -> list[TrialRecord]:
    """Return the study's trials."""
    store = open_store(normalise_url(str(folder / "overhead.db")))
    try:
        return store.trials(STUDY)
    finally:
        store.close()


def own_times(trials: Sequence[TrialRecord]) -> list[tuple[float, float]]:
    """Return, for each trial but the worker's last, its own seconds on the worker and the gap to the next trial."""
    outcomes = sorted((r.outcome for r in trials if r.outcome is not None), key=lambda outcome: outcome.started_at)
    times = []
    for before, after in itertools.pairwise(outcomes):
        own = sum(before.timings.get(phase, 0.0) for phase in PHASES)
        times.append((own, (after.started_at - before.ended_at).total_seconds()))
    return times


def fill(folder: Path, vllm: Path, model: Path, history: int) -> StudySpec:
    """Add made-up finished trials of random configurations to the study, until it has `history`."""
    request = Request(study=STUDY, model=str(model), space="cpu", load=LOAD, server_arguments=SERVER)
    devices = find_devices(1)
    info = EngineInfo("vllm", version_of(vllm, folder / "home"), str(vllm), None, Provenance.MEASURED)
    spec = finish(draft(request, on_cpu=not devices.gpus), info, devices.profile, folder)
    url = normalise_url(str(folder / "overhead.db"))
    study = optuna.load_study(study_name=STUDY, storage=url)
    first = len(study.trials)
    pattern = next(r.outcome for r in records(folder) if r.outcome is not None and r.outcome.succeeded)
    store = open_store(url)
    rng = random.Random(1)
    made = optuna.create_study(directions=study.directions, sampler=optuna.samplers.RandomSampler(seed=1))
    try:
        for number in range(first, history):
            trial = made.ask()
            config = spec.space.suggest(trial)
            outcome = made_up(pattern, rng)
            verdict = spec.judge.verdict(outcome, spec.judge.metrics(pattern))
            assert verdict is not None
            begun = datetime.now(UTC)
            store.add_trial(
                TrialRecord(STUDY, number, 0, TrialKind.SEARCH, "filled", config, config, attempts=0, created_at=begun)
            )
            store.begin_attempt(STUDY, number)
            store.finish_trial(STUDY, number, 0, outcome, verdict)
            store.mark_synced(STUDY, number, 0, f"filled-{number}")
            tell(made, trial, config, verdict)
    finally:
        store.close()
    study.add_trials(made.trials)
    return spec


def made_up(pattern: TrialOutcome, rng: random.Random) -> TrialOutcome:
    """Return an outcome like another, its figures moved by up to a half."""
    repeats: list[Repeat] = []
    for repeat in pattern.repeats[:1]:
        moved = {name: value and value * rng.uniform(0.5, 1.5) for name, value in repeat.metrics.items()}
        repeats.append(replace(repeat, metrics={**moved, "success_rate": 1.0}))
    return replace(pattern, repeats=tuple(repeats))


def tell(study: optuna.Study, trial: optuna.Trial, config: object, verdict: Verdict) -> None:
    """Finish a trial the way the learner does."""
    trial.set_user_attr("config", json.dumps(config, sort_keys=True))
    trial.set_user_attr("score", verdict.score)
    for name, value in {**verdict.constraints, "failed": 0.0}.items():
        trial.set_constraint(name, value)
    study.tell(trial, [value for value in verdict.values.values() if value is not None])


def ask_and_tell(folder: Path, history: int) -> list[Figure]:
    """Time ask and tell on the space for vLLM on a T4, `history` trials in the SQLite file."""
    space = t4_space()
    judge = make_judge(
        ["output_throughput", "p99_tpot_ms", "p99_ttft_ms"], ["p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1"]
    )
    learner = OptunaStudy(normalise_url(str(folder / "asktell.db")), "asktell", space, judge.objectives, seed=0)
    study = optuna.load_study(study_name="asktell", storage=normalise_url(str(folder / "asktell.db")))
    rng = random.Random(1)
    made = optuna.create_study(directions=study.directions, sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(history):
        trial = made.ask()
        tell(made, trial, space.suggest(trial), random_verdict(rng))
    study.add_trials(made.trials)
    asks, tells = [], []
    for _ in range(ASKS + 1):
        begun = time.perf_counter()
        asked = learner.ask()
        between = time.perf_counter()
        learner.tell(asked.number, random_verdict(rng))
        asks.append((between - begun) * 1e3)
        tells.append((time.perf_counter() - between) * 1e3)
    both = [ask + told for ask, told in zip(asks, tells, strict=True)][1:]
    return [
        Figure.over(f"ask and tell with {history} trials, vllm space on a T4", both, "ms", 100.0),
        Figure.over("  ask", asks[1:], "ms", None),
        Figure.over("  tell", tells[1:], "ms", None),
    ]


def t4_space() -> ResolvedSpace:
    """Return the shipped space for vLLM, resolved for a T4."""
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


def random_verdict(rng: random.Random) -> Verdict:
    """Return a verdict with random figures."""
    throughput, tpot, ttft = rng.uniform(500, 4000), rng.uniform(5, 80), rng.uniform(200, 4000)
    values = {"output_throughput": throughput, "p99_tpot_ms": tpot, "p99_ttft_ms": ttft}
    constraints = {"p99_tpot_ms<50": tpot / 50 - 1, "p99_ttft_ms<2000": ttft / 2000 - 1, "success_rate>=1": 0.0}
    return Verdict(values, constraints, throughput / 3332)


def help_wall() -> Figure:
    """Time `tuner --help`, warm."""
    walls = []
    for _ in range(HELPS + 1):
        begun = time.perf_counter()
        subprocess.run([command(), "--help"], check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - begun)
    return Figure.over("`tuner --help`, warm", walls[1:], "s", 0.5)


if __name__ == "__main__":
    main()
