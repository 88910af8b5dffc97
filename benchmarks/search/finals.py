"""Is the exported configuration small, and as good as the whole one? Whole studies whose true scores are known.

    python -m benchmarks.search.finals [--problems NAME …] [--seeds 5] [--first 0] [--trials 60] [--min-gain PERCENT]
        [--choices 0] [--no-prior] [--whole] [--jobs 2] [--json FILE]

Each study runs as `tuner optimize` does: search, rounds, reduction and conclusion. Predictions come from the stored
parameters of the simulator, measurements from perturbed ones, with noise. "Whole" is the finalist with the best true
score; the winner is what is exported. True scores are without noise. The true effect of a flag is the ratio of the
winner's true score to that without the flag.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.command_line import documented_parser, write_json
from benchmarks.search.problems.problem import config_key, seeded_generator
from benchmarks.search.problems.simulated.problem import SHORT_NOISE, SimulatedProblem
from benchmarks.search.problems.simulated.study import SIMULATED_STUDIES
from benchmarks.search.problems.simulated.world import World
from benchmarks.text_table import print_table
from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, TrialKind, TrialOutcome, TrialRecord
from storage import normalise_url, open_store
from storage.store import Store
from tuner.cancellation import Wishes
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, flag_names
from tuner.executors.base import Finished, WorkerState
from tuner.scoring.flag_effects import effect_together, has_effect
from tuner.specs import TrialSpec
from tuner.study.conclusion import Conclusion
from tuner.study.protocols import StudyObserver
from tuner.study.run import open_study, run_study
from tuner.study.specification.spec import Budget

DEFAULT_PROBLEMS = ("sim-t4", "sim-t4-greedy", "sim-l4-phi4", "sim-h200", "sim-h200-7b")
NO_EFFECT = 0.002
"""A true effect below this share of the score is none."""


@dataclass(frozen=True)
class FinalsTask:
    """One study to run.

    Attributes:
        problem: the problem's name.
        seed: of the study and of its world.
        trials: of its search.
        reduce: whether the winner is reduced.
        prior: whether the search has predictions.
        min_gain: of the search, a share of the score; 0 for no early end.
        choices: standard deviation of the effect of each choice that predictions lack.
    """

    problem: str
    seed: int
    trials: int
    reduce: bool = True
    prior: bool = True
    min_gain: float = 0.0
    choices: float = 0.0


@dataclass(frozen=True)
class FinalsResult:
    """The end of one study.

    Attributes:
        problem: the problem's name.
        seed: of the study.
        searched: trials of the search.
        best: the best true score of all trials of the search.
        keeps_defaults: whether the conclusion is to keep the defaults.
        loss: true score of the best finalist less the winner's, in logarithms; None if the defaults are kept.
        score: the winner's true score; 0 if it is infeasible.
        flags_whole: flags of the best finalist.
        flags: flags of the winner.
        without_effect: flags of the winner whose true effect is nothing.
        measured: flags of the winner whose effects were measured in rounds.
        undivided: whether it is better than the defaults beyond the noise while no single flag has a measurable effect.
        contradicts: whether, in such a study, nothing says what all flags bring together.
        reduced: trials of the reduction.
        measurements: measurements in rounds, and trials of smaller forms.
        seconds: of the whole study, simulated.
    """

    problem: str
    seed: int
    searched: int
    best: float
    keeps_defaults: bool
    loss: float | None
    score: float
    flags_whole: int
    flags: int
    without_effect: int
    measured: int
    undivided: bool
    contradicts: bool
    reduced: int
    measurements: int
    seconds: float


class WorldExecutor:
    """An `Executor` that measures a simulated problem in this thread; each launch has its own noise."""

    slots = 1

    def __init__(self, problem: SimulatedProblem, seed: int, provenance: Provenance = Provenance.MEASURED) -> None:
        self._problem, self._seed, self._provenance = problem, seed, provenance
        self._submitted: list[TrialSpec] = []

    def engine_info(self) -> EngineInfo:
        """Return the engine; a study of one that counts as real uses predictions."""
        version = self._problem.study.version
        return EngineInfo("vllm", version, None, flag_names(), self._provenance, SIMULATED_PACKAGES)

    def idle(self) -> list[int]:
        """Return the slot unless it has a trial."""
        return [] if self._submitted else [0]

    def fits(self, slot: int, gpus: int) -> bool:
        """Return True: every worker has the GPUs of a trial."""
        return True

    def starting(self) -> list[int]:
        """Return no slot."""
        return []

    def submit(self, spec: TrialSpec, slot: int) -> None:
        """Take a trial."""
        self._submitted.append(spec)

    def wait_any(self, timeout_s: float) -> list[Finished]:
        """Return the submitted trial's outcome."""
        finished = [Finished(spec, self._outcome(spec), 0) for spec in self._submitted]
        self._submitted = []
        return finished

    def cancel(self) -> None:
        """Do nothing: no trial takes time."""

    def states(self) -> list[WorkerState]:
        """Return nothing."""
        return []

    def close(self) -> None:
        """Do nothing."""

    def _outcome(self, spec: TrialSpec) -> TrialOutcome:
        problem, searched = self._problem, spec.round == 0
        trial = problem.true_trial(spec.config, searched=searched)
        now = datetime.now(UTC)
        outcome = TrialOutcome(now, now, self._provenance, "w0", "simulated", {Phase.BENCHMARK: trial.seconds}, "")
        if trial.metrics is None:
            failure = Failure(FailureKind.ENGINE_CRASH, Phase.READY, "the simulated server does not start")
            return replace(outcome, failure=failure)
        noise = problem.world.noise * (SHORT_NOISE if searched else 1.0)
        world = replace(problem.world, noise=noise)
        generator = seeded_generator(config_key(spec.config), self._seed, spec.number, spec.round)
        metrics = world.measured(trial.metrics, generator)
        repeats = tuple(Repeat(index, index, 100, 100, 0, trial.seconds, metrics) for index in range(spec.repeats))
        return replace(outcome, repeats=repeats)


def finals_result(task: FinalsTask) -> FinalsResult:
    """Run one study and compare what it exports with the whole configuration."""
    seed = task.seed
    world = World(seed=1 + seed, choices=task.choices)
    problem = SimulatedProblem(task.problem, SIMULATED_STUDIES[task.problem](), world)
    executor = WorldExecutor(problem, seed, Provenance.MEASURED if task.prior else Provenance.SIMULATED)
    with TemporaryDirectory(prefix="finals-") as folder:
        url = normalise_url(f"{folder}/study.db")
        store = open_store(url)
        search = replace(problem.study.spec.search, seed=seed)
        confirmation = replace(problem.study.spec.confirmation, reduce=task.reduce)
        spec = replace(problem.study.spec, artifacts=Path(folder), search=search, confirmation=confirmation)
        engine, budget = executor.engine_info(), Budget(trials=task.trials, min_gain=task.min_gain)
        open_study(store, spec, engine, ["simulated"], RealClock())
        run = run_study(spec, engine, budget, store, url, executor, StudyObserver(), Wishes())
        assert run.conclusion is not None
        result = _judge(problem, store, run.conclusion, seed)
        store.close()
    return result


def _judge(problem: SimulatedProblem, store: Store, conclusion: Conclusion, seed: int) -> FinalsResult:
    records = store.trials(problem.study.spec.name)
    trials = {record.number: record for record in records if not record.round}
    rounds = [record for record in records if record.round]
    labels = list(dict.fromkeys(record.label for record in sorted(rounds, key=lambda record: record.round)))
    finalists = [trials[number] for number in _numbers(labels[0]) if number] if labels else []
    winner = trials[conclusion.winner if conclusion.winner is not None else 0]
    kept = conclusion.keeps is not None
    whole = max(finalists, key=lambda each: problem.true_score(each.config) or 0.0, default=winner)
    scores = [problem.true_score(record.config) or 0.0 for record in (whole, winner)]
    flags = problem.space.changed(winner.config)
    searched = [trial for trial in trials.values() if trial.kind is not TrialKind.REDUCED]
    single = any(has_effect(asdict(each)) for each in conclusion.flag_effects)
    undivided = not kept and conclusion.confirmed and not single
    return FinalsResult(
        problem.name,
        seed,
        len(searched),
        max(problem.true_score(trial.config) or 0.0 for trial in searched),
        kept,
        None if kept or not all(scores) else math.log(scores[0] / scores[1]),
        scores[1],
        len(problem.space.changed(whole.config)),
        len(flags),
        sum(_has_no_effect(problem, winner, name, scores[1]) for name in flags),
        sum(effect.rounds > 0 for effect in conclusion.flag_effects),
        undivided,
        undivided and effect_together(conclusion.to_dict(), records) is None,
        sum(record.kind is TrialKind.REDUCED for record in trials.values()),
        len(rounds) + sum(record.kind is TrialKind.REDUCED for record in trials.values()),
        sum(sum(record.outcome.timings.values()) for record in records if record.outcome is not None),
    )


def _numbers(label: str | None) -> list[int]:
    """Return the numbers of the trials in rounds with a label."""
    return [int(number) for number in (label or "").removeprefix("finals ").split(",") if number]


def _has_no_effect(problem: SimulatedProblem, winner: TrialRecord, name: str, score: float) -> bool:
    without = problem.true_score(problem.space.without(winner.config, name))
    return bool(without) and bool(score) and abs(math.log(score / (without or score))) < NO_EFFECT


def _row(name: str, results: Sequence[FinalsResult]) -> list[str]:
    found = [result for result in results if not result.keeps_defaults]
    losses = [result.loss for result in found if result.loss is not None]
    flags = sum(result.flags for result in found)
    return [
        name,
        f"{len(results) - len(found)} of {len(results)}",
        f"{100 * np.median(losses):.1f} %" if losses else "",
        f"{100 * max(losses):.1f} %" if losses else "",
        f"{np.median([result.flags_whole for result in found]):.0f}" if found else "",
        f"{np.median([result.flags for result in found]):.0f}" if found else "",
        f"{100 * sum(result.without_effect for result in found) / flags:.0f} %" if flags else "",
        f"{sum(result.undivided for result in found)}",
        f"{sum(result.contradicts for result in found)}",
        f"{sum(result.score == 0 for result in found)}",
        f"{np.median([result.searched for result in results]):.0f}",
        f"{np.median([result.reduced for result in results]):.0f}",
        f"{np.median([result.measurements for result in results]):.0f}",
        f"{np.median([result.seconds for result in results]):,.0f}",
        f"{np.median([result.score for result in results]):.2f}",
    ]


def check_finals() -> None:
    """Run the studies and print the figures."""
    parser = documented_parser(__doc__)
    parser.add_argument("--problems", nargs="+", default=DEFAULT_PROBLEMS)
    parser.add_argument("--seeds", type=int, default=5, help="studies of each problem [5]")
    parser.add_argument("--first", type=int, default=0, help="the first seed; it determines the world, too [0]")
    parser.add_argument("--trials", type=int, default=60, help="trials of a search [60]")
    parser.add_argument("--min-gain", type=float, default=0.0, help="--min-gain of the studies, in per cent [0]")
    parser.add_argument("--choices", type=float, default=0.0, help="standard deviation of each choice's effect [0]")
    parser.add_argument("--no-prior", action="store_true", help="search without predictions")
    parser.add_argument("--jobs", type=int, default=2, help="processes [2]")
    parser.add_argument("--whole", action="store_true", help="do not reduce the winner")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    asked = parser.parse_args()
    tasks = [
        FinalsTask(name, seed, asked.trials, not asked.whole, not asked.no_prior, asked.min_gain / 100, asked.choices)
        for seed in range(asked.first, asked.first + asked.seeds)
        for name in asked.problems
    ]
    with get_context("spawn").Pool(asked.jobs) as pool:
        results = list(pool.imap(finals_result, tasks))
    rows = [_row(name, [result for result in results if result.problem == name]) for name in asked.problems]
    header = [
        "problem",
        "keeps defaults",
        "loss",
        "largest",
        "flags whole",
        "flags",
        "no effect",
        "undivided",
        "contradictions",
        "infeasible",
        "trials",
        "reduced",
        "measurements",
        "seconds",
        "score",
    ]
    caption = (
        "Of the studies that export a configuration: true score of the best finalist over the winner's, less 1 "
        "(median and largest), flags of both (medians), share of exported flags without a true effect, winners no "
        "single flag of which has a measured effect, contradictions, infeasible winners; of all: trials of the "
        "search and of smaller forms, all measurements of the finals, these included, simulated seconds of the study, "
        "and true score of what it exports, 1 for the defaults (medians)"
    )
    print_table(f"{caption}; {asked.seeds} seeds, {asked.trials} trials", header, rows)
    write_json(asked.json, [asdict(each) for each in results])


if __name__ == "__main__":
    check_finals()
