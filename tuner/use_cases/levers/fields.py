"""The settings of a study and a run as fields, by the keywords of `tuner.optimize`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tuner.processes.secrets import mask_url_passwords
from tuner.specs import Limits
from tuner.study.specification.settings import AUTO, DEFAULT_PRESET, RunSettings, StudySettings

SEARCH_LOAD = 0.5
"""The share of the requests that commands and the Python API send in the search, unless another one is given."""


def fields_of(settings: StudySettings, run: RunSettings) -> dict[str, Any]:
    """Return the settings that differ from the defaults of a command, as plain JSON, and the number of trials.

    Lists are repeated settings; `NAME=VALUE` stands for an entry of a mapping. Passwords in the database's address are
    masked; secrets of servers are references already.
    """
    parts = (_study(settings, run), _engine(settings, run), _load(settings), _search(settings))
    found = {name: value for part in parts for name, value, default in part if value not in (None, default)}
    storage = {} if run.storage is None else {"storage": mask_url_passwords(run.storage)}
    return {**found, **storage, "output": os.fspath(run.output)}


_Fields = Iterator[tuple[str, Any, Any]]


def _study(settings: StudySettings, run: RunSettings) -> _Fields:
    """Yield name, value and default of each setting of the study and its model."""
    yield "preset", settings.preset, DEFAULT_PRESET
    yield "study", settings.name, None
    yield "trials", run.budget.trials, None
    yield "model", settings.model.name, None
    yield "tokenizer", settings.model.tokenizer, None
    yield "checkpoint", [f"{method}={name}" for method, name in settings.model.checkpoints.items()], []
    yield "draft_model", settings.model.draft_model, None


def _engine(settings: StudySettings, run: RunSettings) -> _Fields:
    engine, startup_s = run.engine, settings.limits.startup_s
    yield "engine", engine.engine, AUTO
    yield "vllm", engine.vllm, None
    yield "llama_server", engine.llama_server, None
    yield "sglang", engine.sglang, None
    yield "trtllm_serve", engine.trtllm_serve, None
    yield "server_command", engine.server_command, None
    yield "gpu", engine.gpu, None
    yield "vllm_version", engine.vllm_version, None
    yield "workers", engine.workers, None
    yield "ray_address", engine.ray_address, None
    yield "warm_start", engine.warm_start, True
    yield "startup_timeout", f"{startup_s:.12g}s", f"{Limits().startup_s:.12g}s"
    yield "env", [f"{name}={value}" for name, value in settings.server.environment.items()], []
    yield "secret", list(settings.server.secrets), []
    yield "server_arguments", list(settings.server.arguments), []


def _load(settings: StudySettings) -> _Fields:
    workload = settings.workload
    yield "workload", list(workload.files), []
    yield "rate", workload.rate, None
    yield "max_concurrency", workload.max_concurrency, None
    yield "num_prompts", workload.num_prompts, None
    yield "input_len", workload.input_len, None
    yield "output_len", workload.output_len, None
    yield "temperature", workload.temperature, None
    yield "objective", list(settings.goals.objectives), []
    yield "slo", list(settings.goals.slos), []
    yield "quality_task", settings.goals.quality_task, None
    yield "price", settings.price, None


def _search(settings: StudySettings) -> _Fields:
    space, search, confirmation = settings.space, settings.search, settings.confirmation
    yield "space", space.name, None
    yield "only", list(space.only), []
    yield "keep_answers", space.keep_answers, False
    yield "bunched_tokens", space.bunched_tokens, False
    yield "enqueue", list(space.enqueue), []
    yield "baseline", space.baseline, None
    yield "sampler", search.sampler, AUTO
    yield "seed", search.seed, 0
    yield "learn_from", list(search.learn_from), []
    yield "repeats", search.repeats, 1
    yield "search_load", settings.search_load, SEARCH_LOAD
    yield "finalists", confirmation.finalists, 3
    yield "confirm_rounds", confirmation.rounds, 3
    yield "baseline_repeats", confirmation.baseline_repeats, 3
    yield "reduce", confirmation.reduce, True
