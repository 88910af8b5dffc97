"""Makes every problem by its name, from the settings of a run."""

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.simulated.problem import SimulatedProblem
from benchmarks.search.problems.simulated.study import SIMULATED_STUDIES, find_simulated_study
from benchmarks.search.problems.simulated.world import World
from benchmarks.search.problems.synthetic.problems import SYNTHETIC
from benchmarks.search.problems.synthetic.related import RELATED
from benchmarks.search.problems.tables.predictions import predictor
from benchmarks.search.problems.tables.problem import Table, TableProblem
from benchmarks.search.problems.tables.recorded import recorded_tables

FAMILIES = ("tables", "simulated", "synthetic")


@dataclass(frozen=True)
class ProblemSettings:
    """The settings that problems depend on.

    Attributes:
        world: the perturbation of simulated problems.
        prior: the kind of prior that samplers get.
        table: the user's table, in addition to those of the repository.
        objectives: the objectives of the user's table.
        slos: the SLOs of the user's table.
        forked: whether simulated servers are forked from a process that has imported vLLM.
        workload_share: share of a simulated workload that a trial of the search sends.
    """

    world: World = field(default_factory=World)
    prior: str = "right"
    table: Path | None = None
    objectives: tuple[str, ...] = ()
    slos: tuple[str, ...] = ("success_rate>=1",)
    forked: bool = True
    workload_share: float = 1.0


def problem_names(family: str, settings: ProblemSettings) -> list[str]:
    """Return the names of a family's problems."""
    if family == "tables":
        return [settings.table.stem] if settings.table is not None else list(recorded_tables())
    return list(SIMULATED_STUDIES if family == "simulated" else SYNTHETIC)


@cache
def make_problem(name: str, settings: ProblemSettings) -> Problem:
    """Return a problem; a process makes each problem once.

    Raises:
        KeyError: if no problem has that name.
    """
    if settings.table is not None and name == settings.table.stem:
        return TableProblem(Table(name, settings.table, settings.objectives, settings.slos), settings.prior)
    tables = recorded_tables()
    if name in tables:
        return TableProblem(replace(tables[name], predict=predictor(name)), settings.prior)
    formulas = {**SYNTHETIC, **RELATED}
    if name in formulas:
        return formulas[name](settings.prior)
    study = find_simulated_study(name, settings.forked, settings.workload_share)
    return SimulatedProblem(name, study, settings.world, settings.prior)


def cache_identity(problem: Problem) -> str | None:
    """Return the cache key of a problem's best score; None if the best score is known exactly."""
    return problem.identity if isinstance(problem, SimulatedProblem) else None
