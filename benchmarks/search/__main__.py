"""Which sampler finds good configurations in the fewest trials, with the fewest infeasible trials on the way?

    python -m benchmarks.search [--family tables|simulated|synthetic … | --problems NAME …] [--samplers NAME …]
        [--seeds 20] [--trials 60] [--workers 1] [--prior right|wrong|none] [--finalists 1] [--jobs 2]
        [--world-spread 0.2] [--world-choices 0.05] [--world-seed 1] [--workload-share 1]
        [--source-study PROBLEM] [--table FILE --objective METRIC[:WEIGHT] … --slo SLO …]
        [--reuse FILE …] [--json FILE] [--list]

The problems are recorded tables of real measurements; simulated studies, whose measurements come from a simulator with
perturbed parameters (also as PRESET@CARD: any preset of one workload on any card); and formulas with known optima.
Every search begins with the defaults. A suggestion that breaks a known rule, or is measured already, is drawn again.
`--source-study` gives the residual sampler a search of its own on another problem as a source study; the problems of
benchmarks/search/problems/synthetic/related.py are meant for that.

Each figure is a median over seeds with its 95 % bootstrap interval; the captions of the printed tables describe them.
The incumbent is the trial with the best measured score, or the one that the residual sampler's surrogate ranks first.
Its score is taken without noise.

`--reuse` adds the searches of earlier `--json` files that this run does not repeat. GPSampler needs PyTorch,
SMAC3 the package smac, and the sampler of AIPerf aiperf[botorch]; they are left out without.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.command_line import documented_parser, write_json
from benchmarks.search.comparison import SearchTask, raise_best_scores, run_searches
from benchmarks.search.problems.catalogue import (
    FAMILIES,
    ProblemSettings,
    make_problem,
    problem_names,
)
from benchmarks.search.problems.problem import PRIOR_KINDS, Problem
from benchmarks.search.problems.simulated.world import World
from benchmarks.search.problems.synthetic.related import RELATED
from benchmarks.search.report.files import read_summaries, results_data
from benchmarks.search.report.summary import SearchSummary
from benchmarks.search.report.tables import print_problem
from benchmarks.search.samplers.catalogue import COMPARED_SAMPLERS, RESIDUAL_NAME

PREMISE_OPTIONS = ("trials", "workers", "finalists", "source_study")
"""Options that make two searches comparable, besides the settings of the problems."""


def search_arguments() -> argparse.Namespace:
    """Return the options of the command line; old spellings of options and names are accepted."""
    parser = documented_parser(__doc__)
    _add_search_options(parser)
    _add_problem_options(parser)
    parser.add_argument("--against", default=RESIDUAL_NAME, help="the sampler to compare")
    parser.add_argument("--reuse", type=Path, nargs="*", default=[], help="--json files; --seeds 0 shows only these")
    parser.add_argument("--json", type=Path, help="write every search and figure to this file")
    parser.add_argument("--list", action="store_true", help="print the problems and the samplers")
    arguments = parser.parse_args()
    if (arguments.table is None) != (not arguments.objective):
        parser.error("--table and --objective: give both or neither")
    return arguments


def _add_search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--samplers",
        nargs="+",
        metavar="NAME",
        choices=list(COMPARED_SAMPLERS),
        help="the samplers under comparison",
    )
    parser.add_argument("--seeds", type=int, default=20, help="searches of each sampler on each problem [20]")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=60, help="the budget of a search [60]")
    parser.add_argument("--workers", type=int, default=1, help="trials that run side by side [1]")
    parser.add_argument("--finalists", type=int, default=1, help="best trials whose true scores are known [1]")
    parser.add_argument("--jobs", type=int, default=2, help="processes [2]")
    parser.add_argument(
        "--source-study",
        metavar="PROBLEM",
        help="the problem of the residual sampler's source study, with as many trials",
    )


def _add_problem_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--family", nargs="+", choices=FAMILIES)
    parser.add_argument("--problems", nargs="+", metavar="NAME")
    parser.add_argument(
        "--prior", choices=PRIOR_KINDS, default="right", help="kind of predictions for samplers [right]"
    )
    parser.add_argument(
        "--world-spread", type=float, default=World.spread, help="deviation of the perturbed parameters' logarithms"
    )
    parser.add_argument(
        "--world-choices", type=float, default=World.choices, help="deviation of unmodelled effects of choices"
    )
    parser.add_argument("--world-seed", type=int, default=World.seed, help="of the perturbation")
    parser.add_argument("--plain-starts", action="store_true", help="simulated servers are new commands, not forks")
    parser.add_argument(
        "--workload-share",
        type=float,
        default=1.0,
        help="share of a simulated closed loop's prompts that a trial sends [1]",
    )
    parser.add_argument("--table", type=Path, help="JSON lines as in benchmarks/reference, or a study's CSV file")
    parser.add_argument("--objective", action="append", default=[], metavar="METRIC[:WEIGHT]", help="of --table")
    parser.add_argument("--slo", action="append", default=[], metavar="SLO", help="of --table [success_rate>=1]")


def problem_settings(arguments: argparse.Namespace) -> ProblemSettings:
    """Return the settings that problems depend on."""
    return ProblemSettings(
        world=World(arguments.world_seed, arguments.world_spread, arguments.world_choices),
        prior=arguments.prior,
        table=arguments.table,
        objectives=tuple(arguments.objective),
        slos=tuple(arguments.slo or ProblemSettings.slos),
        forked=not arguments.plain_starts,
        workload_share=arguments.workload_share,
    )


def selected_problems(arguments: argparse.Namespace, settings: ProblemSettings) -> list[str]:
    """Return the names of the problems to search.

    Raises:
        SystemExit: if no problem has a given name.
    """
    if arguments.problems:
        names: list[str] = arguments.problems
        for name in names:
            try:
                make_problem(name, settings)
            except KeyError:
                raise SystemExit(f"--problems {name}: no such problem; --list shows them") from None
        return names
    families = arguments.family or (["tables"] if arguments.table else FAMILIES)
    return [name for family in families for name in problem_names(family, settings)]


def selected_samplers(arguments: argparse.Namespace, problem: Problem) -> list[str]:
    """Return the names of the samplers that can take part; print why another is left out."""
    selected = []
    for name in arguments.samplers or [sampler.name for sampler in COMPARED_SAMPLERS.values() if sampler.by_default]:
        sampler = COMPARED_SAMPLERS[name]
        if sampler.missing_modules:
            print(f"{name} is left out: {', '.join(sampler.missing_modules)} is not installed", file=sys.stderr)
            continue
        try:
            sampler.make(problem, 0)
        except NotImplementedError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
        else:
            selected.append(name)
    return selected


def search_tasks(
    arguments: argparse.Namespace, problems: Sequence[str], samplers: Sequence[str], settings: ProblemSettings
) -> list[SearchTask]:
    """Return one task for each problem, seed and sampler that can search the problem."""
    return [
        SearchTask(
            problem=problem,
            sampler=sampler,
            seed=seed,
            trials=arguments.trials,
            workers=arguments.workers,
            finalists=arguments.finalists,
            settings=settings,
            source_study=arguments.source_study,
        )
        for problem in problems
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        for sampler in samplers
        if COMPARED_SAMPLERS[sampler].applies_to(make_problem(problem, settings))
    ]


def premise_of(arguments: argparse.Namespace, settings: ProblemSettings) -> dict[str, Any]:
    """Return everything that makes two searches comparable, as plain JSON data."""
    plain = {**asdict(replace(settings, table=None)), "table": settings.table and settings.table.name}
    options = {name: getattr(arguments, name) for name in PREMISE_OPTIONS}
    premise: dict[str, Any] = json.loads(json.dumps({**plain, **options}))
    return premise


def grouped_summaries(
    runs: Sequence[SearchSummary], problems: Sequence[str]
) -> dict[str, dict[str, list[SearchSummary]]]:
    """Return the searches by problem and sampler, in the order of their seeds."""
    grouped: dict[str, dict[str, list[SearchSummary]]] = {name: {} for name in problems}
    for sampler in COMPARED_SAMPLERS:
        for run in sorted(runs, key=lambda run: run.seed):
            if run.sampler == sampler:
                grouped[run.problem].setdefault(sampler, []).append(run)
    return grouped


def print_catalogue(settings: ProblemSettings) -> None:
    """Print the names of the problems and the samplers."""
    for family in FAMILIES:
        print(f"{family}: {', '.join(problem_names(family, settings))}")
    print(f"for --source-study: {', '.join(RELATED)}")
    print(f"samplers: {', '.join(COMPARED_SAMPLERS)}")


def compare_samplers() -> None:
    """Run the searches, print the figures and write the files."""
    arguments = search_arguments()
    settings = problem_settings(arguments)
    if arguments.list:
        print_catalogue(settings)
        return
    problems = selected_problems(arguments, settings)
    samplers = selected_samplers(arguments, make_problem(problems[0], settings))
    premise = premise_of(arguments, settings)
    reused = [run for file in arguments.reuse for run in read_summaries(file, problems, premise)]
    runs, best = run_searches(search_tasks(arguments, problems, samplers, settings), problems, settings, arguments.jobs)
    repeated = {(run.problem, run.sampler, run.seed) for run in runs}
    runs += [run for run in reused if (run.problem, run.sampler, run.seed) not in repeated]
    raise_best_scores(runs, best, settings)
    grouped = grouped_summaries(runs, problems)
    for name in problems:
        print_problem(name, grouped[name], best[name], arguments.against)
    write_json(arguments.json, results_data(grouped, best, premise))


if __name__ == "__main__":
    compare_samplers()
