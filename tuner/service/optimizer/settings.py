"""The settings of an optimization: search space, objectives, sampler and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces import Context, HardwareProfile, ResolvedSpace, SpaceError, parse_space
from search_spaces.yaml_file import yaml_text
from storage.metrics import Direction
from tuner.errors import SettingError
from tuner.scoring.objectives import Objective

RANDOM, TPE, RESIDUAL = "random", "tpe", "residual"
SAMPLERS = (RANDOM, TPE, RESIDUAL)

_NO_HARDWARE = Context(HardwareProfile("none", "none", "cpu", None, None, None))


@dataclass(frozen=True)
class OptimizerSettings:
    """What an optimization suggests from.

    Attributes:
        space: the search space; facts of engines, models and workloads are unknown in its expressions.
        objectives: with their weights in the score.
        sampler: one of `SAMPLERS`.
        seed: of all draws.
    """

    space: ResolvedSpace
    objectives: tuple[Objective, ...]
    sampler: str
    seed: int


def read_spec(spec: Mapping[str, Any]) -> OptimizerSettings:
    """Return the settings of a stored spec, see `make_spec`."""
    objectives = [
        Objective(each["metric"], Direction(each["direction"]), each["weight"]) for each in spec["objectives"]
    ]
    return OptimizerSettings(read_space(spec["space"]), tuple(objectives), spec["sampler"], spec["seed"])


def make_spec(
    space: str | Mapping[str, Any], objectives: Sequence[Objective], sampler: str, seed: int
) -> dict[str, Any]:
    """Return settings as JSON."""
    return {
        "space": space,
        "objectives": [
            {"metric": each.metric, "direction": each.direction.value, "weight": each.weight} for each in objectives
        ],
        "sampler": sampler,
        "seed": seed,
    }


def read_space(given: str | Mapping[str, Any]) -> ResolvedSpace:
    """Return the space of YAML text, or of the same content as JSON, in which descriptions may be left out.

    Raises:
        SettingError: if it is not valid, or has no parameter.
    """
    try:
        declared = parse_space(given if isinstance(given, str) else yaml_text(_described(given)))
        # All are selected, so that no condition is tried on all combinations of values.
        space = declared.resolve(_NO_HARDWARE, only=declared.parameter_names)
    except SpaceError as error:
        raise SettingError("space", None, str(error)) from None
    if not space.parameters:
        why = "; ".join(dropped.reason for dropped in space.dropped)
        raise SettingError("space", None, f"the space has no parameter: {why}", "add one")
    return space


def _described(given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = given.get("parameters")
    if not isinstance(parameters, Mapping):
        return dict(given)
    described = {
        name: {"description": name, **each} if isinstance(each, Mapping) else each for name, each in parameters.items()
    }
    return {**given, "parameters": described}
