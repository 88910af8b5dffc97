"""The error of predictions, by regime: nine of ten rows of a regime that were left out of the fit stay below it.

A regime is a card, the format of the weights, and a dense model on one GPU without drafts. A regime with fewer than
`LEAST_ROWS` rows has no band: what the fit says about one regime says nothing about another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.engines.simulator.config.serve_config import ServeConfig
from tuner.engines.simulator.parameters import documented_bands

LEAST_ROWS = 10
"""Rows of a regime from which the error of nine of ten is one."""
_FULL = "16-bit"
_NAMES = {"fp8": "FP8", "fp8_per_block": "FP8 (by blocks)", "awq": "AWQ", "awq_marlin": "AWQ", "gptq": "GPTQ"}


@dataclass(frozen=True)
class ErrorBands:
    """The relative error of each metric; without any, the reason why there is none."""

    errors: Mapping[str, float]
    reason: str | None = None


def find_error_bands(config: ServeConfig, *, instances: int = 1) -> ErrorBands:
    """Return the errors of predictions of a configuration.

    Args:
        config: of each server.
        instances: equal servers behind a router.
    """
    if instances > 1 or config.parallel.gpus > 1 or config.servers_per_gpu > 1:
        return _none("several GPUs or servers")
    weights, card = weights_of(config), config.card
    if config.speculation is not None:
        return _none(f"drafts on one {card.name}")
    for entry in documented_bands():
        if (entry["card"], entry["weights"]) == (card.key, weights) and entry["rows"] >= LEAST_ROWS:
            return ErrorBands({name: value for name, value in entry.items() if isinstance(value, float)})
    return _none(f"{_NAMES.get(weights, weights)} weights on one {card.name}")


def weights_of(config: ServeConfig) -> str:
    """Return the format of the weights: 16 bits, or the quantization method."""
    return config.quantization or _FULL


def _none(what: str) -> ErrorBands:
    return ErrorBands({}, f"too few measured rows for {what}: no error band")
