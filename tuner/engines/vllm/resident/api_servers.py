"""API servers as forks of the server that starts them. Run in a fork of the helper, never imported by the tuner.

Where there are several, vLLM starts them as new interpreters, whatever `VLLM_WORKER_MULTIPROC_METHOD` says, and each of
them imports vLLM anew. Here they are started as the engine is.
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
    """The module `multiprocessing`, whose every context forks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)

    def get_context(self, method: str | None = None) -> Any:
        """Return the context that forks."""
        return multiprocessing.get_context("fork")


def fork_api_servers() -> None:
    """Have vLLM, in this process, fork its API servers, if it is to fork its engine."""
    if os.environ.get(METHOD) != "fork":
        return
    try:
        manager = importlib.import_module("vllm.v1.utils")
    except ImportError:
        return
    manager.multiprocessing = Forks()  # type: ignore[attr-defined]
    os.register_at_fork(after_in_child=count_together)


def count_together() -> None:
    """Keep metrics where all API servers' are added up, if there are several.

    prometheus_client decides on its import, which in a fork lies before the server knew how many there would be.
    """
    values = sys.modules.get("prometheus_client.values")
    if values is not None and SHARED_METRICS in os.environ:
        values.ValueClass = values.get_value_class()  # type: ignore[attr-defined]
