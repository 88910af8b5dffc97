"""The error bands of `parameters.yaml`: what nine of ten rows that a fit did not see stay below, by regime.

A regime is a card, kinds of layers and a format of the weights, on one GPU without drafts (`ErrorBands`). It has a band
if at least `LEAST_ROWS` rows of `LEAST_CONFIGURATIONS` configurations are measured. Rows whose random weights choose
the same experts do not count, because real weights do not. `calibrate` and `experts` write the bands of their rows'
regimes, and leave the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.simulator.rows import COMPARED_METRICS, Row
from tuner.engines.simulator.parameters import LEAST_ROWS, PARAMETERS_FILE, documented_bands, layers_of, weights_of
from tuner.engines.simulator.serve_config import resolve_serve_config

LEAST_CONFIGURATIONS = 4
_REGIME = ("card", "layers", "weights")

Regime = tuple[str, str, str]


def error_bands_of(
    rows: Sequence[Row], predicted: Sequence[Mapping[str, float | None]]
) -> dict[Regime, dict[str, object] | None]:
    """Return by regime the errors that nine of ten left-out rows stay below; None for one with too few rows."""
    errors: dict[Regime, list[Mapping[str, float]]] = {}
    configurations: dict[Regime, set[tuple[str, ...]]] = {}
    for row, values in zip(rows, predicted, strict=True):
        config = resolve_serve_config(row.args, {}, row.model, row.card, row.version, row.packages, row.gpus)
        if config.speculation is None and config.parallel.gpus == 1 and not config.same_experts:
            regime = (row.card.key, layers_of(row.model), weights_of(config))
            metrics = [metric for metric in COMPARED_METRICS if row.metrics.get(metric)]
            found = {metric: abs((values.get(metric) or 0.0) / row.metrics[metric] - 1) for metric in metrics}
            errors.setdefault(regime, []).append(found)
            configurations.setdefault(regime, set()).add(row.args)
    return {
        regime: dict(zip(_REGIME, regime, strict=True)) | {"rows": len(found), **_nine_of_ten(found)}
        if len(found) >= LEAST_ROWS and len(configurations[regime]) >= LEAST_CONFIGURATIONS
        else None
        for regime, found in errors.items()
    }


def _nine_of_ten(errors: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the error of each metric that nine of ten rows stay below."""
    values = {name: [each[name] for each in errors if name in each] for name in COMPARED_METRICS}
    return {name: round(float(np.percentile(found, 90)), 2) for name, found in values.items() if found}


def merged(
    stored: Sequence[Mapping[str, object]], bands: Mapping[Regime, Mapping[str, object] | None]
) -> list[Mapping[str, object]]:
    """Return the stored bands with those of the given regimes in their place."""
    kept = [band for band in stored if tuple(str(band[key]) for key in _REGIME) not in bands]
    return [*kept, *(band for band in bands.values() if band is not None)]


def write_bands(bands: Mapping[Regime, Mapping[str, object] | None]) -> None:
    """Write the bands into `parameters.yaml`, and leave those of other regimes."""
    lines = [f"  - {json.dumps(dict(band))}".replace('"', "") for band in merged(documented_bands(), bands)]
    text = PARAMETERS_FILE.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^error_bands:\n(  - .*\n?)*", "\n".join(["error_bands:", *lines, ""]), text)
    PARAMETERS_FILE.write_text(text, encoding="utf-8")
