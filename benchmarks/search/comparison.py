"""Which sampler finds good configurations in fewest trials, and with fewest failures on the way?

    python -m benchmarks.search [--family tables|simulated|synthetic … | --problems NAME …] [--rivals NAME …]
        [--seeds 20] [--trials 60] [--workers 1] [--prior right|wrong|none] [--finalists 1] [--jobs 2]
        [--world-spread 0.2] [--world-choices 0.05] [--world-seed 1]
        [--earlier PROBLEM] [--table FILE --objective METRIC[:WEIGHT] … --slo SLO …]
        [--reuse FILE] [--json FILE] [--plot FILE] [--list]

Problems: recorded tables of real measurements, replayed; the simulated engine, whose measurements come from another
world than its predictions (also as PRESET@CARD, any preset of one load on any card); formulas with known optima.
Every search begins with the defaults. A configuration that breaks a known rule, or is known already, is drawn anew.
With `--earlier` this project's sampler knows of a search of its own on another problem (search_cousins.py has some).

Printed for each problem and sampler, as the median over seeds with its 95 % bootstrap interval: trials until the
incumbent has 95 % and 99 % of the best known feasible score (budget + 1: never), the incumbent's score relative to that
after 10, 15, 30 and 60 trials, the hypervolume, the share of trials after the 20th that crashed or broke an SLO, the
mean score of the trials themselves up to the 15th (0 for what is infeasible), what was measured of the winner relative
to what is true of it, virtual hours until 95 % (or to the end), and seconds an ask. The incumbent is what was measured
best (of this project's sampler: what it thinks best), and what counts is its score without noise. Then the mean
differences to `--against` by seed: only where the interval lies on one side of 0 is one of the two better.

`--reuse` takes the searches of earlier `--json` files that are not run now. GPSampler needs PyTorch; without it, it is
left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.search.play import play
from benchmarks.search.problems.best import raise_best
from benchmarks.search.problems.catalogue import FAMILIES, Settings, identity_of, make_problem, names_of
from benchmarks.search.problems.problem import PRIORS, Problem
from benchmarks.search.problems.world import World
from benchmarks.search.report import Summary, differences, figure, figures, plot, summarise
from benchmarks.search.samplers.catalogue import RIVALS
from benchmarks.search.samplers.transfer import taught_by

SHOWN = ("trials_to_95%", "trials_to_99%", "score_10", "score_15", "score_30", "score_60")
ALSO_SHOWN = ("hypervolume_60", "infeasible", "proposed_15", "claimed", "hours_to_95%", "ask_s")
SETTLED = ("settled_trials", "settled_score", "settled_hours")
COMPARED = ("trials_to_95%", "trials_to_99%", "score_15", "score_30", "score_60", "infeasible", "proposed_15")
DIGITS = {"trials_to_95%": 0, "trials_to_99%": 0, "ask_s": 3, "settled_trials": 0}


@dataclass(frozen=True)
class Task:
    """One search."""

    problem: str
    rival: str
    seed: int
    trials: int
    workers: int
    finalists: int
    settings: Settings
    earlier: str | None = None


def search(task: Task) -> Summary:
    """Run one search, in whichever process."""
    problem, rival = make_problem(task.problem, task.settings), RIVALS[task.rival]
    if task.earlier is not None:
        rival = taught_by(rival, task.earlier, task.settings, task.trials)
    record = play(problem, rival, task.trials, task.seed, task.workers)
    return summarise(problem, record, task.finalists)


def best_of(name: str, settings: Settings) -> tuple[str, float]:
    """Return a problem's best known score, in whichever process."""
    return name, make_problem(name, settings).best


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", nargs="+", choices=FAMILIES)
    parser.add_argument("--problems", nargs="+", metavar="NAME")
    parser.add_argument("--rivals", nargs="+", metavar="NAME", choices=list(RIVALS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prior", choices=PRIORS, default="right", help="what samplers that ask are predicted")
    parser.add_argument("--finalists", type=int, default=1, help="how many of the best are known without noise")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--world-spread", type=float, default=World.spread, help="0: the simulator's own parameters")
    parser.add_argument("--world-choices", type=float, default=World.choices, help="effects that no physics knows of")
    parser.add_argument("--world-seed", type=int, default=World.seed)
    parser.add_argument("--plain-starts", action="store_true", help="simulated servers are commands, not forks")
    parser.add_argument("--search-load", type=float, default=1.0, help="share of a simulated load that a trial sends")
    parser.add_argument("--earlier", metavar="PROBLEM", help="of which ours knows a search before, as many trials")
    parser.add_argument("--table", type=Path, help="JSON lines as in benchmarks/reference, or a study's CSV")
    parser.add_argument("--objective", action="append", default=[], metavar="METRIC[:WEIGHT]")
    parser.add_argument("--slo", action="append", default=[], metavar="SLO", help="of --table [success_rate>=1]")
    parser.add_argument("--against", default="ours", help="whom the others are compared with")
    parser.add_argument("--reuse", type=Path, nargs="*", default=[], help="--json files to show; --seeds 0: only these")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--list", action="store_true", help="print problems and rivals")
    arguments = parser.parse_args(words)
    if (arguments.table is None) != (not arguments.objective):
        parser.error("--table and --objective go together")
    return arguments


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return what problems depend on."""
    world = World(arguments.world_seed, arguments.world_spread, arguments.world_choices)
    slos = tuple(arguments.slo or Settings.slos)
    return Settings(
        world,
        arguments.prior,
        arguments.table,
        tuple(arguments.objective),
        slos,
        forked=not arguments.plain_starts,
        search_load=arguments.search_load,
    )


def wanted_problems(arguments: argparse.Namespace, settings: Settings) -> list[str]:
    """Return the names of the problems to search, after checking them."""
    if arguments.problems:
        names: list[str] = arguments.problems
        for name in names:
            try:
                make_problem(name, settings)
            except KeyError:
                raise SystemExit(f"--problems {name}: there is none of that name; --list shows them") from None
        return names
    families = arguments.family or (["tables"] if arguments.table else FAMILIES)
    return [name for family in families for name in names_of(family, settings)]


def wanted_rivals(arguments: argparse.Namespace, problem: Problem) -> list[str]:
    """Return the names of the rivals that can take part; who cannot, and why, is printed."""
    found = []
    for name in arguments.rivals or [rival.name for rival in RIVALS.values() if rival.usual]:
        rival = RIVALS[name]
        if rival.missing:
            print(f"{name} is left out: {', '.join(rival.missing)} is not installed", file=sys.stderr)
            continue
        try:
            rival.sampler(problem, 0)
        except NotImplementedError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def run_all(
    tasks: Sequence[Task], names: Sequence[str], settings: Settings, jobs: int
) -> tuple[list[Summary], dict[str, float]]:
    """Run every search and find every best score, in processes, which end with this one."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes: torch and BLAS would fight over the cores
    signal.signal(signal.SIGTERM, _leave)
    found: list[Summary] = []
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        best = dict(pool.starmap(best_of, [(name, settings) for name in names]))
        for summary in pool.imap_unordered(search, tasks):
            found.append(summary)
            if sys.stderr.isatty() or len(found) % max(1, len(tasks) // 20) == 0:
                end = "\r" if sys.stderr.isatty() else "\n"
                print(f"{len(found)} of {len(tasks)} searches", end=end, file=sys.stderr)
    return found, best


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> None:
    """Search, print, write."""
    arguments = parse()
    settings = settings_of(arguments)
    if arguments.list:
        for family in FAMILIES:
            print(f"{family}: {', '.join(names_of(family, settings))}")
        print(f"rivals: {', '.join(RIVALS)}")
        return
    names = wanted_problems(arguments, settings)
    rivals = wanted_rivals(arguments, make_problem(names[0], settings))
    tasks = [
        Task(name, rival, seed, arguments.trials, arguments.workers, arguments.finalists, settings, arguments.earlier)
        for name in names
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for rival in rivals
        if RIVALS[rival].suits(make_problem(name, settings))
    ]
    earlier = [run for file in arguments.reuse for run in reused(file, names, premise(arguments, settings))]
    runs, best = run_all(tasks, names, settings, arguments.jobs)
    known = {(run.problem, run.rival, run.seed) for run in runs}
    runs += [run for run in earlier if (run.problem, run.rival, run.seed) not in known]
    raise_all(runs, best, settings)
    ordered = grouped(runs, names)
    for name in names:
        show(name, ordered[name], best[name], arguments.against)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(ordered, best, premise(arguments, settings)), indent=1))
    if arguments.plot is not None:
        plot(ordered, best, arguments.plot)


def premise(arguments: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Return all that makes two searches comparable, as plain JSON."""
    plain = {**asdict(replace(settings, table=None)), "table": settings.table and settings.table.name}
    kept = {name: getattr(arguments, name) for name in ("trials", "workers", "finalists", "earlier")}
    found: dict[str, Any] = json.loads(json.dumps({**plain, **kept}))
    return found


def reused(file: Path, names: Sequence[str], wanted: dict[str, Any]) -> list[Summary]:
    """Return the searches of an earlier run.

    Raises:
        SystemExit: when they were run under another premise; the prior may differ for rivals that ask for none.
    """
    earlier = json.loads(file.read_text(encoding="utf-8"))
    before = {"earlier": None, **earlier["premise"]}
    same_prior = before["prior"] == wanted["prior"]
    if {**before, "prior": None} != {**wanted, "prior": None}:
        raise SystemExit(f"--reuse {file}: run under {before}, not {wanted}; leave it out")
    found = [Summary(**entry) for entry in earlier["runs"] if entry["problem"] in names]
    return [run for run in found if same_prior or run.rival != "ours"]


def raise_all(runs: Sequence[Summary], best: dict[str, float], settings: Settings) -> None:
    """Remember what was found to be better than the best known."""
    for run in runs:
        if run.top > best[run.problem] * (1 + 1e-9):
            identity = identity_of(make_problem(run.problem, settings))
            if identity is not None:
                raise_best(identity, run.top, run.top_config)
            best[run.problem] = run.top


def grouped(runs: Sequence[Summary], names: Sequence[str]) -> dict[str, dict[str, list[Summary]]]:
    """Return the searches by problem and rival, by seed."""
    found: dict[str, dict[str, list[Summary]]] = {name: {} for name in names}
    for rival in RIVALS:
        for run in sorted(runs, key=lambda run: run.seed):
            if run.rival == rival:
                found[run.problem].setdefault(rival, []).append(run)
    return found


def show(name: str, by_rival: dict[str, list[Summary]], best: float, against: str) -> None:
    """Print a problem's figures, and the differences to one rival."""
    seeds = max((len(runs) for runs in by_rival.values()), default=0)
    print(f"\n{name}: best known score {best:.4g}, {seeds} seeds")
    for shown in (SHOWN, ALSO_SHOWN, SETTLED):
        print(f"  {'':<16}" + "".join(f"{column:>22}" for column in shown))
        for rival, runs in by_rival.items():
            found = figures(runs, best)
            cells = [(figure(found[column]), DIGITS.get(column, 2)) for column in shown]
            print(
                f"  {rival:<16}"
                + "".join(f"{'-' if each is None else each.text(digits):>22}" for each, digits in cells)
            )
    if against in by_rival and len(by_rival) > 1:
        print(f"  {against} minus" + " " * (10 - len(against)) + "".join(f"{column:>22}" for column in COMPARED))
        for rival, runs in by_rival.items():
            if rival != against:
                found_differences = differences(by_rival[against], runs, best)
                texts = [
                    "-" if each is None else each.text(DIGITS.get(column, 2))
                    for column in COMPARED
                    for each in (found_differences.get(column),)
                ]
                print(f"  {rival:<16}" + "".join(f"{text:>22}" for text in texts))


def as_json(
    ordered: dict[str, dict[str, list[Summary]]], best: dict[str, float], wanted: dict[str, Any]
) -> dict[str, object]:
    """Return every search and every figure as plain data."""
    shown = {
        name: {
            rival: {
                key: each and asdict(each)
                for key, each in ((k, figure(v)) for k, v in figures(runs, best[name]).items())
            }
            for rival, runs in by_rival.items()
        }
        for name, by_rival in ordered.items()
    }
    runs = [asdict(run) for by_rival in ordered.values() for each in by_rival.values() for run in each]
    return {"premise": wanted, "best": best, "figures": shown, "runs": runs}
