"""How many trials are cut short, what does it save, and does it cost a winner? Trials whose whole runs are known.

    python -m benchmarks.search.cutting [--problems NAME …] [--seeds 20] [--first 0] [--trials 60] [--share 0.9]
    python -m benchmarks.search.cutting --studies [--problems NAME …] [--seeds 3] [--trials 30]

Each world has `--pool` configurations: one in four is random, the others are one to four of a random one's flags. A
seed draws the parameters of the world's noise and the order of `--trials` of them after the defaults, whose whole runs
are simulated with perturbed parameters. A run that is faster by a factor has its requests' times divided by it, which
is the noise of a launch. Each trial is then looked at as a study does, with the best whole trial so far.

With `--studies`, whole studies without predictions run twice, with and without cutting: search, rounds and conclusion.

A cut is wrong if the whole run meets every SLO and reaches the score that was needed; while no trial meets every SLO,
if it is nearer to them than was needed.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.command_line import documented_parser, write_json
from benchmarks.search.finals import WorldExecutor
from benchmarks.search.problems.problem import seeded_generator
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.problems.simulated.study import SIMULATED_STUDIES, SimulatedStudy
from benchmarks.search.problems.simulated.world import World
from benchmarks.search.problems.trials import RandomTrial
from benchmarks.text_table import print_table
from records.trials import Config, Provenance, TrialOutcome
from search_spaces import version_tuple
from storage import normalise_url, open_store
from tuner.cancellation import Wishes
from tuner.clock import RealClock
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.engine import STOP_S, first_cut
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.metrics import request_record
from tuner.engines.simulator.parameters import Parameters, parameters_of
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import Platform, build_server, run_workload
from tuner.engines.simulator.startup import startup_s
from tuner.scoring.goals import distance_of, score
from tuner.specs import CutRule, TrialSpec
from tuner.study.protocols import StudyObserver
from tuner.study.run import open_study, run_study
from tuner.study.specification.spec import Budget
from tuner.trial.cut import TrialWatch
from tuner.workloads.progress import RunProgress
from tuner.workloads.results import RequestRecord
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.traffic import Traffic

TRAFFIC_PROBLEMS = ("sim-h200-7b", "sim-h200-moe", "sim-h200-mla", "sim-l4-phi4", "sim-ada-mixed")
NOISE = 0.03
"""Standard deviation of the logarithm of a launch's speed."""


@dataclass(frozen=True)
class WholeRun:
    """The requests of a configuration's whole run, and the seconds of its start and stop."""

    records: tuple[RequestRecord, ...]
    around_s: float


@dataclass(frozen=True)
class CuttingResult:
    """One order of trials.

    Attributes:
        problem: the problem's name.
        seed: of order and noise.
        trials: trials after the defaults that ran.
        cut: of them, those that were cut.
        wrong: of the cut ones, those that would have won.
        lost: of the whole runs, those that miss an SLO or score too little to win.
        benchmark_s: seconds of all whole benchmarks.
        around_s: seconds of all starts and stops.
        saved_s: seconds of benchmarks that cutting saves.
        best_cut: whether the trial with the best score, or the nearest to the SLOs if none meets them, was cut.
        finalist_cut: whether one of the three best was.
    """

    problem: str
    seed: int
    trials: int
    cut: int
    wrong: int
    lost: int
    benchmark_s: float
    around_s: float
    saved_s: float
    best_cut: bool
    finalist_cut: bool


def pool_of(study: SimulatedStudy, name: str, count: int) -> list[Config]:
    """Return the defaults and `count` further configurations that break no rule."""
    space, random, found = study.spec.space, seeded_generator("cutting", name), list[Config]([{}])
    while len(found) <= count:
        whole = space.suggest(RandomTrial(random))
        names = sorted(whole)
        few = random.choice(names, size=min(len(names), int(random.integers(1, 5))), replace=False)
        config = whole if len(found) % 4 == 0 else {each: whole[each] for each in few}
        if not space.violations(config):
            found.append(config)
    return found


def whole_run(study: SimulatedStudy, config: Config, parameters: Parameters) -> WholeRun | None:
    """Return the run of a configuration; None if its server does not start."""
    rendered = study.spec.space.render(config)
    words = (*study.spec.server.arguments, *rendered.argv)
    environment = {**study.spec.server.environment, **rendered.environment}
    platform = Platform(study.card, parameters, version_tuple(study.version), study.packages, study.spec.gpus)
    try:
        server: ConfiguredServer = build_server(platform, words, environment, study.shape)
    except (ConfigRefused, StartFailed):
        return None
    workload = study.spec.workload
    assert isinstance(workload, Traffic)
    warm = parameters.compile_warm_s if server.config.graphs.compiled else 0.0
    started = startup_s(server.config, server.budget, parameters, warm, forked=study.forked)
    run = run_workload(server, workload, workload.repeat_seed(0), study.spec.limits.benchmark_s)
    interval = server.config.stream_interval
    records = (request_record(each, run.received_s, interval, server.speculative) for each in run.requests)
    return WholeRun(tuple(records), started + STOP_S)


def sped_up_records(records: Sequence[RequestRecord], factor: float) -> list[RequestRecord]:
    """Return the records of a server that is faster by a factor."""

    def moved(at_s: float | None, begin: float) -> float | None:
        return None if at_s is None else begin + (at_s - begin) / factor

    found = []
    for record in records:
        begin = record.due_s or 0.0
        found.append(
            replace(
                record,
                sent_s=moved(record.sent_s, begin),
                first_token_s=moved(record.first_token_s, begin),
                end_s=moved(record.end_s, begin),
                gaps_s=tuple(gap / factor for gap in record.gaps_s),
            )
        )
    return found


def cutting_result(
    study: SimulatedStudy, name: str, runs: Sequence[WholeRun], seed: int, share: float
) -> CuttingResult:
    """Return what happens to some whole runs, of which the first is the defaults', in this order."""
    goals, workload = study.spec.goals, study.spec.workload
    assert isinstance(workload, Traffic)
    random = seeded_generator("cutting", name, seed)
    reference: dict[str, float | None] | None = None
    incumbent, scores, cuts = None, list[float](), list[bool]()
    wrong = lost = 0
    benchmark_s, saved_s, nearest = 0.0, 0.0, math.inf
    for number, run in enumerate(runs):
        records = sped_up_records(run.records, math.exp(NOISE * random.standard_normal()))
        repeat = repeat_of(workload, records, 0)
        metrics = {each.metric: repeat.metrics.get(each.metric) for each in goals.scored}
        reference = reference or metrics
        own = score(metrics, reference, goals.scored)
        feasible = own is not None and all(slo.met(repeat.metrics.get(slo.metric)) for slo in goals.slos)
        duration = repeat.duration_s or 0.0
        cut = None
        distance = distance_of(slo.violation(repeat.metrics.get(slo.metric)) for slo in goals.slos)
        if number:
            wanted = None if incumbent is None else share * incumbent
            rule = CutRule(goals.slos, goals.scored, reference, wanted, nearest - math.log(share))
            watch = TrialWatch(rule, workload, study.spec.gpus)
            cut = first_cut(watch, RunProgress(records, watch.slos, watch.users))
            hopeless = distance > rule.distance if wanted is None else not feasible or (own or 0.0) < wanted
            wrong += cut is not None and not hopeless
            lost += hopeless
        benchmark_s += duration
        saved_s += 0.0 if cut is None else duration - cut.after_s
        scores.append((own or 0.0) if feasible else -distance)
        cuts.append(cut is not None)
        if cut is None and feasible and own is not None:
            incumbent = max(incumbent or 0.0, own)
        if cut is None:
            nearest = min(nearest, distance)
    ranked = np.argsort(-np.array(scores), kind="stable")
    top = [int(place) for place in ranked[:3]]
    around_s = sum(run.around_s for run in runs)
    return CuttingResult(
        name,
        seed,
        len(runs) - 1,
        sum(cuts),
        wrong,
        lost,
        benchmark_s,
        around_s,
        saved_s,
        cuts[top[0]],
        any(cuts[place] for place in top),
    )


def _results(task: tuple[str, int, int, int, int, tuple[float, ...]]) -> list[tuple[float, CuttingResult]]:
    """Return, for one problem, each share of the best score and each seed."""
    name, first, seeds, trials, pool, shares = task
    study = SIMULATED_STUDIES[name]()
    parameters = World(seed=1 + first).parameters(parameters_of(study.card.key), study.card.key)
    configs = pool_of(study, name, pool)
    runs = [run for config in configs if (run := whole_run(study, config, parameters)) is not None]
    found = []
    for seed in range(first, first + seeds):
        order = seeded_generator("order", name, seed).permutation(np.arange(1, len(runs)))[:trials]
        chosen = [runs[0], *(runs[int(place)] for place in order)]
        found += [(share, cutting_result(study, name, chosen, seed, share)) for share in shares]
    return found


class CuttingExecutor(WorldExecutor):
    """A `WorldExecutor` that cuts trials short, and adds up the seconds of all trials of the search."""

    def __init__(self, problem: SimulatedProblem, seed: int) -> None:
        super().__init__(problem, seed, Provenance.SIMULATED)
        self.search_s = 0.0
        self.cut = 0

    def _outcome(self, spec: TrialSpec) -> TrialOutcome:
        outcome = super()._outcome(spec)
        seconds, found = sum(outcome.timings.values()), None
        run = None if spec.cut is None else whole_run(self._problem.study, spec.config, self._problem._true)
        if run is not None and spec.cut is not None and isinstance(spec.workload, Traffic):
            noise = seeded_generator("cutting", self._seed, spec.number).standard_normal()
            records = sped_up_records(run.records, math.exp(NOISE * noise))
            watch = TrialWatch(spec.cut, spec.workload, spec.gpus)
            found = first_cut(watch, RunProgress(records, watch.slos, watch.users))
        if found is not None:
            self.cut += 1
            seconds = run.around_s + found.after_s if run is not None else seconds
            outcome = replace(outcome, repeats=(), failure=None, cut=found)
        self.search_s += 0.0 if spec.round else seconds
        return outcome


def study_figures(name: str, seed: int, trials: int, cut_short: bool) -> tuple[float, int, float]:
    """Return the true score of what a whole study exports, its trials that were cut, and the seconds of its search."""
    problem = SimulatedProblem(name, SIMULATED_STUDIES[name](), World(seed=1 + seed, choices=0.0))
    executor = CuttingExecutor(problem, seed)
    with TemporaryDirectory(prefix="cutting-") as folder:
        url = normalise_url(f"{folder}/study.db")
        store = open_store(url)
        search = replace(problem.study.spec.search, seed=seed, cut_short=cut_short)
        spec = replace(problem.study.spec, artifacts=Path(folder), search=search)
        engine = executor.engine_info()
        open_study(store, spec, engine, ["simulated"], RealClock())
        run = run_study(spec, engine, Budget(trials=trials), store, url, executor, StudyObserver(), Wishes())
        winner = 0 if run.conclusion is None or run.conclusion.winner is None else run.conclusion.winner
        config = next(each.config for each in store.trials(spec.name) if each.number == winner and not each.round)
        store.close()
    return problem.true_score(config) or 0.0, executor.cut, executor.search_s


def _study_row(task: tuple[str, int, int]) -> list[str]:
    name, seed, trials = task
    whole, cut = (study_figures(name, seed, trials, cut_short) for cut_short in (False, True))
    return [name, f"{seed}", f"{whole[0]:.3f}", f"{cut[0]:.3f}", f"{cut[1]}", f"{whole[2]:.0f}", f"{cut[2]:.0f}"]


def _row(name: str, share: float, results: Sequence[CuttingResult]) -> list[str]:
    trials, cut = sum(each.trials for each in results), sum(each.cut for each in results)
    benchmark, around = sum(each.benchmark_s for each in results), sum(each.around_s for each in results)
    saved = sum(each.saved_s for each in results)
    return [
        name,
        f"{share:g}",
        f"{trials}",
        f"{100 * sum(each.lost for each in results) / trials:.0f} %",
        f"{100 * cut / trials:.0f} %",
        f"{sum(each.wrong for each in results)}",
        f"{100 * saved / benchmark:.0f} %",
        f"{100 * saved / (benchmark + around):.0f} %",
        f"{sum(each.best_cut for each in results)} of {len(results)}",
        f"{sum(each.finalist_cut for each in results)} of {len(results)}",
    ]


def _check_studies(problems: Sequence[str], seeds: Sequence[int], trials: int, jobs: int) -> None:
    with get_context("spawn").Pool(jobs) as pool:
        found = list(pool.imap(_study_row, [(name, seed, trials) for name in problems for seed in seeds]))
    header = ["problem", "seed", "score whole", "score cut", "cut", "search s whole", "search s cut"]
    caption = "True scores of what studies without and with cutting export, trials cut, seconds of the search"
    print_table(f"{caption}; {trials} trials", header, found)


def check_cutting() -> None:
    """Look at the trials and print the figures."""
    parser = documented_parser(__doc__)
    parser.add_argument("--problems", nargs="+", default=TRAFFIC_PROBLEMS)
    parser.add_argument("--seeds", type=int, default=20, help="orders of each problem [20]")
    parser.add_argument("--first", type=int, default=0, help="the first seed; it determines the world, too [0]")
    parser.add_argument("--trials", type=int, default=60, help="trials after the defaults [60]")
    parser.add_argument("--pool", type=int, default=90, help="configurations of each problem [90]")
    parser.add_argument("--share", type=float, nargs="+", default=[0.9], help="of the best score that must be reached")
    parser.add_argument("--jobs", type=int, default=1, help="processes [1]")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    parser.add_argument("--studies", action="store_true", help="run whole studies with and without cutting")
    asked = parser.parse_args()
    if asked.studies:
        _check_studies(asked.problems, range(asked.first, asked.first + asked.seeds), asked.trials, asked.jobs)
        return
    tasks = [(name, asked.first, asked.seeds, asked.trials, asked.pool, tuple(asked.share)) for name in asked.problems]
    with get_context("spawn").Pool(asked.jobs) as pool:
        results = [each for found in pool.imap(_results, tasks) for each in found]
    rows = [
        _row(name, share, [each for of, each in results if of == share and each.problem == name])
        for name in asked.problems
        for share in asked.share
    ]
    header = ["problem", "share", "n", "lost", "cut", "wrong", "of benchmarks", "of trials", "best cut", "finalist cut"]
    caption = (
        "Trials that cannot win (lost), trials that were cut, wrong cuts, seconds saved as a share of all benchmarks "
        "and of all starts, benchmarks and stops; orders in which the best trial, or one of the three best, was cut"
    )
    print_table(f"{caption}; {asked.seeds} orders from seed {asked.first}", header, rows)
    write_json(asked.json, [{"share": share, **asdict(each)} for share, each in results])


if __name__ == "__main__":
    check_cutting()
