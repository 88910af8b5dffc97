"""The records of what measured trials tell about the predictor of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Site:
    """Where an engine runs: what must be equal for measurements to tell about each other's predictions.

    Attributes:
        host: its name.
        card: name of the GPU.
        version: of the engine.
        installation: the engine's program.
        predictor: digest of the predictor's stored parameters.
    """

    host: str
    card: str
    version: str
    installation: str
    predictor: str


@dataclass(frozen=True)
class Lesson:
    """One measured trial beside its prediction, which is linear in the parameters near those that it was made with.

    A parameter's value is ln(value / stored value).

    Attributes:
        site: where it was measured.
        point: the parameters of the prediction, by name; 0 where one is missing.
        errors: ln(measured / predicted) by metric.
        slopes: by metric, the derivative of ln predicted with respect to each parameter.
    """

    site: Site
    point: Mapping[str, float]
    errors: Mapping[str, float]
    slopes: Mapping[str, Mapping[str, float]]
