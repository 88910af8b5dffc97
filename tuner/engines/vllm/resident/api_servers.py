"""Make vLLM fork its API servers. Runs in a fork of the helper; the tuner never imports it.

vLLM starts several API servers as new interpreters, regardless of `VLLM_WORKER_MULTIPROC_METHOD`, and each of them
imports vLLM again. This module makes it start them as it starts the engine.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from typing import Any

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"


class Forks:
    """A stand-in for the module `multiprocessing` whose only context forks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)

    def get_context(self, method: str | None = None) -> Any:
        """Return the context that forks."""
        return multiprocessing.get_context("fork")


def fork_api_servers() -> None:
    """Make vLLM in this process fork its API servers if it forks its engine."""
    if os.environ.get(METHOD) != "fork":
        return
    try:
        manager = importlib.import_module("vllm.v1.utils")
    except ImportError:
        return
    manager.multiprocessing = Forks()  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=use_shared_metrics)


def use_shared_metrics() -> None:
    """Store metrics in the files that all API servers share, if there are several.

    prometheus_client chooses the storage at its import. In a fork, that was before the number of API servers was set.
    """
    values = sys.modules.get("prometheus_client.values")
    if values is not None and SHARED_METRICS in os.environ:
        values.ValueClass = values.get_value_class()  # type: ignore[attr-defined]
