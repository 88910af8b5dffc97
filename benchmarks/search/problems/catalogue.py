"""Every problem by name, made from the settings of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from benchmarks.search.problems.predicted import predictor
from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.related import COUSINS
from benchmarks.search.problems.simulated import RIGS, SimulatedProblem, simulated
from benchmarks.search.problems.synthetic import SYNTHETIC
from benchmarks.search.problems.tables import Table, TableProblem, tables
from benchmarks.search.problems.world import World

FAMILIES = ("tables", "simulated", "synthetic")


@dataclass(frozen=True)
class Settings:
    """What problems depend on; `table` is one of the user's, beside those of the repository."""

    world: World = field(default_factory=World)
    prior: str = "right"
    table: Path | None = None
    objectives: tuple[str, ...] = ()
    slos: tuple[str, ...] = ("success_rate>=1",)
    forked: bool = True
    search_load: float = 1.0


def names_of(family: str, settings: Settings) -> list[str]:
    """Return the names of a family's problems."""
    if family == "tables":
        return [settings.table.stem] if settings.table is not None else list(tables())
    return list(RIGS if family == "simulated" else SYNTHETIC)


@cache
def make_problem(name: str, settings: Settings) -> Problem:
    """Return a problem, one for each process.

    Raises:
        KeyError: if there is none of that name.
    """
    if settings.table is not None and name == settings.table.stem:
        return TableProblem(Table(name, settings.table, settings.objectives, settings.slos), settings.prior)
    if name in tables():
        return TableProblem(replace(tables()[name], predict=predictor(name)), settings.prior)
    formulas = {**SYNTHETIC, **COUSINS}
    if name in formulas:
        return formulas[name](settings.prior)
    return simulated(name, settings.world, settings.prior, settings.forked, settings.search_load)


def identity_of(problem: Problem) -> str | None:
    """Return what the remembered best score of a problem depends on; None if its best is known exactly."""
    return problem.identity if isinstance(problem, SimulatedProblem) else None
