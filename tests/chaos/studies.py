"""One study after another under random faults, with the invariants checked after each fault and at each end.

After every fault: no finished trial is lost or differs. After the end of a command: nothing that it started runs 15 s
later. After the end of the study: its trials are numbered without holes, each finished trial is in MLflow once, and no
process record and no temporary folder is left.
"""

import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from records.trials import TrialRecord
from tests.chaos.faults import CLOCK_VARIABLE, MEMORY_FAULT, Fault, Scene, clock_of, draw
from tests.fakes import install_fake_vllm
from tests.faults.command import Command, Study, described
from tests.mlflow_server import MlflowServer, mlflow_server
from tests.model_configs import write_folder
from tests.postgres import PostgresServer

TRIALS = 14
ROUNDS = 2
BENCHMARK_S = 0.4
LATEST_S = 3.0
"""A fault comes at most this long after the one before was over."""
LEFTOVERS_S = 15.0
"""How long processes of a killed command may take to end."""
HANG_S = 600.0
"""Without a finished trial for so long, a study hangs."""
MAX_STARTS = 60
SETTLED_CODES = (0, 1, 130)
REFUSED_CODE, REFUSED = 2, "cannot use the database"
"""Of a command that starts while PostgreSQL is down."""
ABORTED_CODE = -signal.SIGABRT
"""Of a command that has no memory left: Ray's C++ ends it."""
WORKLOAD = ("--input-len", "128", "--output-len", "64", "--prompts", "40", "--users", "10")
SEARCH = (
    *("--space", "cpu", "--baseline-repeats", "1", "--finalists", "2", "--confirm-rounds", str(ROUNDS)),
    *("--no-reduce", "--plain"),
)
SERVER = ("--", "--max-model-len", "1024")
CLOCK = Path(__file__).parent / "clock"
"""Python finds what steps the date here."""
POLL_S = 0.1

Key = tuple[int, int]


@dataclass
class ChaosReport:
    """What happened: faults by kind, and every broken invariant."""

    faults: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    studies: int = 0

    @property
    def total(self) -> int:
        """The number of faults that struck."""
        return sum(self.faults.values())


@dataclass(frozen=True)
class Surroundings:
    """What the studies run with.

    Attributes:
        postgres: a server for the studies' databases; None: SQLite files.
        mlflow: whether each study logs to an MLflow server.
    """

    postgres: PostgresServer | None = None
    mlflow: bool = False


def new_study(folder: Path, seed: int, around: Surroundings, mlflow: MlflowServer | None) -> Study:
    """Return a study in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    storage = None if around.postgres is None else around.postgres.new_database()
    clock_of(folder).write_text("0")
    environment = {"PYTHONPATH": str(CLOCK), CLOCK_VARIABLE: str(clock_of(folder))}
    environment |= {} if mlflow is None else {"MLFLOW_TRACKING_URI": mlflow.url}
    vllm = install_fake_vllm(folder / "bin", bench_s=BENCHMARK_S)
    model = folder / "model"
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 4096}
    write_folder(model, config)
    (model / "tokenizer.json").write_text("{}")
    arguments = ("--trials", str(TRIALS), "--seed", str(seed), *SEARCH, *WORKLOAD, *SERVER)
    return Study(folder, vllm, model, arguments, storage, **environment)


class ChaosStudy:
    """One study from its first command to its conclusion."""

    def __init__(
        self,
        study: Study,
        report: ChaosReport,
        rng: random.Random,
        faults: int,
        around: Surroundings,
        mlflow: MlflowServer | None,
    ) -> None:
        self.study, self.report, self.rng, self.around, self.mlflow = study, report, rng, around, mlflow
        self.faults_left = faults
        self.finished: dict[Key, TrialRecord] = {}
        self.command: Command = self.start()

    def start(self) -> Command:
        """Start the command, which is the same each time."""
        return self.study.start()

    def scene(self) -> Scene:
        """Return what a fault can strike now."""
        return Scene(self.study, self.command, self.rng, self.around.postgres, self.mlflow)

    def run(self) -> None:
        """Let faults strike until none is left, then let the study end; check it."""
        while self.faults_left > 0:
            if self.pause() and not self.restart_or_end():
                break
            if self.command.popen.poll() is None:
                self.strike(draw(self.scene()))
        while self.wait() and self.restart_or_end():
            pass
        self.check_end()

    def pause(self) -> bool:
        """Wait until a random instant while trials run; return whether the command ended meanwhile."""
        until = time.monotonic() + self.rng.uniform(0, LATEST_S)
        while time.monotonic() < until:
            if self.command.popen.poll() is not None:
                return True
            time.sleep(0.02)
        return False

    def strike(self, fault: Fault) -> None:
        """Let a fault strike, and wait until the study has recovered."""
        before = self.snapshot()
        if not fault.strike(self.scene()):
            return
        self.faults_left -= 1
        self.report.faults[fault.name] += 1
        begun = time.monotonic()
        if fault.ends_command:
            self.command.wait()
            self.check_leftovers(fault.name)
            self.command = self.start()
        while self.command.popen.poll() is None and len(self.study.finished()) <= len(before):
            self.command.note_descendants()
            if time.monotonic() - begun > HANG_S:
                self.problem(f"no progress for {HANG_S:.0f} s after {fault.name}")
                self.command.kill()
                return
            time.sleep(POLL_S)
        self.snapshot()

    def snapshot(self) -> dict[Key, TrialRecord]:
        """Return the finished trials, after a check that no earlier one is lost or differs."""
        now = self.study.finished()
        for key, record in self.finished.items():
            if key not in now:
                self.problem(f"trial {key} is lost")
            elif (now[key].outcome, now[key].config) != (record.outcome, record.config):
                self.problem(f"trial {key} differs: it was repeated")
        self.finished = now
        return now

    def wait(self) -> bool:
        """Wait until the command ends by itself; return True."""
        begun, finished = time.monotonic(), len(self.finished)
        while self.command.popen.poll() is None:
            if (count := len(self.study.finished())) != finished:
                begun, finished = time.monotonic(), count
            self.command.note_descendants()
            if time.monotonic() - begun > HANG_S:
                self.problem(f"the command does not end: no progress for {HANG_S:.0f} s")
                self.command.kill()
            time.sleep(POLL_S)
        return True

    def restart_or_end(self) -> bool:
        """After the end of a command: start the next one, or return False if the study is done."""
        code = self.command.popen.returncode
        if code == 0:
            return False
        if not self.has_settled(code):
            self.problem(f"exit code {code}: {self.command.output()[-400:]}")
        if len(self.study.commands) >= MAX_STARTS:
            self.problem(f"the study is not done after {MAX_STARTS} commands: {self.command.output()[-400:]}")
            return False
        self.check_leftovers("an early end")
        self.command = self.start()
        return True

    def has_settled(self, code: int) -> bool:
        """Return whether a command may end with this exit code."""
        no_memory = code == ABORTED_CODE and self.report.faults[MEMORY_FAULT] > 0
        refused = code == REFUSED_CODE and self.around.postgres is not None and REFUSED in self.command.output()
        return code in SETTLED_CODES or no_memory or refused

    def check_leftovers(self, cause: str) -> None:
        """Measure how long what an ended command started takes to disappear."""
        begun = time.monotonic()
        while (left := self.leftovers()) and time.monotonic() - begun < LEFTOVERS_S:
            time.sleep(0.05)
        if left:
            ended = f"exit code {self.command.popen.returncode}: {self.command.output()[-400:]}"
            self.problem(f"left {LEFTOVERS_S:.0f} s after {cause}: {left}; {ended}")

    def leftovers(self) -> str:
        """Return the processes and temporary folders of ended commands; empty if there are none."""
        return "; ".join([described(self.study.running()), *self.study.folders()]).strip("; ")

    def check_end(self) -> None:
        """Check the study that has ended."""
        records = self.snapshot()
        self.report.studies += 1
        numbers = sorted(number for number, round_ in records if round_ == 0)
        if numbers != list(range(TRIALS)):
            self.problem(f"trials {numbers} of {TRIALS}")
        self.check_leftovers("the end of the study")
        sync = self.study.sync()
        if sync.wait() != 0:
            self.problem(f"tuner study sync: exit code {sync.popen.returncode}: {sync.output()[-400:]}")
        database = None if self.mlflow is None else self.mlflow.database
        try:
            problems = self.study.mlflow_problems(database)
        except sqlite3.Error as error:
            problems = [f"MLflow's database: {error}; the last command: {self.command.output()[-400:]}"]
        for problem in (*problems, *self.study.leftovers()):
            self.problem(problem)

    def problem(self, text: str) -> None:
        """Add a broken invariant."""
        self.report.problems.append(f"{self.study.folder.name}: {text}")


def run_chaos(
    folder: Path, faults: int, seed: int, around: Surroundings = Surroundings(), each: int = 12
) -> ChaosReport:
    """Run studies until `faults` faults have struck, at most `each` in one study."""
    report, rng = ChaosReport(), random.Random(seed)
    while report.total < faults:
        with ExitStack() as stack:
            place = folder / f"study-{report.studies}"
            mlflow = stack.enter_context(mlflow_server(folder / f"mlflow-{report.studies}")) if around.mlflow else None
            study = new_study(place, rng.randrange(1000), around, mlflow)
            stack.callback(study.close)
            ChaosStudy(study, report, rng, min(each, faults - report.total), around, mlflow).run()
    return report
