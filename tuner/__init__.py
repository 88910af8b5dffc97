"""A Bayesian autotuner for LLM serving.

The public API: `optimize` runs a study, `load_study` reads a stored one, `ResidualSampler` is the sampler for any
Optuna study, and `Client` and `AsyncClient` ask a `tuner serve`. Names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.api import BestTrial, Study, load_study, optimize
    from tuner.client.client import AsyncClient, Client
    from tuner.errors import SettingError, TunerError, UserError
    from tuner.sampler.residual import ResidualSampler

__version__ = "1.0.0"

__all__ = [
    "AsyncClient",
    "BestTrial",
    "Client",
    "ResidualSampler",
    "SettingError",
    "Study",
    "TunerError",
    "UserError",
    "load_study",
    "optimize",
]

if not TYPE_CHECKING:
    _HOMES = {
        "AsyncClient": "tuner.client.client",
        "BestTrial": "tuner.api",
        "Client": "tuner.client.client",
        "ResidualSampler": "tuner.sampler.residual",
        "SettingError": "tuner.errors",
        "Study": "tuner.api",
        "TunerError": "tuner.errors",
        "UserError": "tuner.errors",
        "load_study": "tuner.api",
        "optimize": "tuner.api",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
