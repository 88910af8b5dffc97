"""Traffic against a running server: the schedule, its prompts, the generator, and from its records to a repeat.

Left in the trial's artifacts: `requests-N.parquet`, a record a request with its class, schedule and times;
`requests-N.json`, how late the generator itself was.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tuner
from storage.records import FailureKind, Phase, Repeat
from tuner.engines.vllm.resident_client import HelperJob, PlainJob
from tuner.engines.vllm.toolbox import Toolbox
from tuner.errors import trial_failed
from tuner.loadgen.plan import LoadPlan, PlannedRequest, write_plan
from tuner.loadgen.result import OwnDelays, read_delays, read_records
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.schedule import OfferedRequest, make_schedule
from tuner.workloads.texts import UserText, read_texts
from tuner.workloads.traffic import TextFile, Traffic

TOLERABLE_DELAY_S = 0.005
"""Own delays up to here never make a run invalid."""

TOLERABLE_SHARE = 0.1
"""Nor do those up to this share of the run's TTFT at the same percentile, the 99th."""

GRACE_S = 15.0
"""What the generator gets beyond its own limit to write down its records."""


@dataclass(frozen=True)
class LoadFiles:
    """The files of one load in the trial's folder."""

    folder: Path
    name: str

    @property
    def records(self) -> Path:
        """A record a request."""
        return self.folder / f"{self.name}.parquet"

    @property
    def delays(self) -> Path:
        """The generator's account of itself."""
        return self.folder / f"{self.name}.json"

    @property
    def log(self) -> Path:
        """What the generator and the making of prompts print."""
        return self.folder / f"{self.name}.log"

    @property
    def plan(self) -> Path:
        """What the generator sends; removed afterwards, its schedule is in the records."""
        return self.folder / f"{self.name}-plan.jsonl"


def start_load(
    tools: Toolbox, traffic: Traffic, index: int, files: LoadFiles, url: str, model: str, tokenizer: str, limit_s: float
) -> HelperJob:
    """Make repeat `index` of a load and start its generator; the job must be waited for or cancelled.

    Args:
        tools: the worker's.
        traffic: what to send.
        index: of the repeat, whose schedule and prompts are of a seed of their own.
        files: where to.
        url: of the completions API.
        model: its name in requests.
        tokenizer: name or folder of the model's tokenizer.
        limit_s: seconds after which the generator ends the run.

    Raises:
        TrialFailed: when the prompts cannot be made.
    """
    requests = make_requests(tools, traffic, traffic.repeat_seed(index), files, tokenizer)
    plan = LoadPlan(url, model, traffic.users, traffic.max_in_flight, traffic.timeout_s, limit_s)
    return start_plan(plan, requests, files)


def make_requests(
    tools: Toolbox, traffic: Traffic, seed: int, files: LoadFiles, tokenizer: str
) -> list[PlannedRequest]:
    """Return every request of the load with its prompt.

    Raises:
        TrialFailed: when the prompts cannot be made.
    """
    schedule = make_schedule(traffic, seed)
    wanted = files.folder / f"{files.name}-prompts.json"
    wanted.write_text(json.dumps({"tokenizer": tokenizer, "requests": [_wanted(traffic, o) for o in schedule]}))
    try:
        prompts = tools.prompts(wanted, files.log)
    finally:
        wanted.unlink(missing_ok=True)
    return [_planned(traffic, offered, *made) for offered, made in zip(schedule, prompts, strict=True)]


def start_plan(plan: LoadPlan, requests: Sequence[PlannedRequest], files: LoadFiles) -> HelperJob:
    """Start the generator on a plan; the job must be waited for or cancelled."""
    write_plan(files.plan, plan, requests)
    for stale in (files.records, files.delays):
        stale.unlink(missing_ok=True)
    result = files.records.with_suffix("")
    argv = [sys.executable, "-m", "tuner.loadgen", os.fspath(files.plan), os.fspath(result)]
    return PlainJob(argv, _environment(os.environ), files.log, files.folder)


def _wanted(traffic: Traffic, offered: OfferedRequest) -> dict[str, Any]:
    """Return what `resident/prompts.py` is told of one request."""
    kind = traffic.classes[offered.name]
    shared: list[tuple[str, int]] = [("system", traffic.system_prompt)] if traffic.system_prompt else []
    if kind.prefix is not None:
        shared.append((f"{offered.name}/{offered.document}", kind.prefix.tokens))
    text = _text(traffic, offered)
    if text is not None:
        return {"shared": shared, "prompt": text.prompt, "answer": None if text.output_tokens else text.answer}
    return {"shared": shared, "tokens": offered.input_tokens, "seed": offered.text_seed, "text": kind.text}


def _text(traffic: Traffic, offered: OfferedRequest) -> UserText | None:
    kind = traffic.classes[offered.name].text
    return read_texts(kind.file)[offered.text] if isinstance(kind, TextFile) and offered.text is not None else None


def _planned(traffic: Traffic, offered: OfferedRequest, prompt: str, tokens: int, answer: int | None) -> PlannedRequest:
    text = _text(traffic, offered)
    wanted = (text.output_tokens if text else None) or answer or offered.output_tokens
    assert wanted is not None  # a class whose prompts do not say how long their answer is has an `output`
    return PlannedRequest(offered.index, offered.name, offered.at_s, prompt, tokens, wanted)


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the generator's environment: ours, with this very package on its path."""
    root = os.fspath(Path(tuner.__file__).parents[1])
    path = os.pathsep.join(part for part in (root, inherited.get("PYTHONPATH", "")) if part)
    return {**inherited, "PYTHONPATH": path}


def read_load(traffic: Traffic, index: int, files: LoadFiles) -> tuple[Repeat, str | None]:
    """Return what the records of repeat `index` say, and why they cannot count; None if they can.

    Raises:
        TrialFailed: when there are none.
    """
    files.plan.unlink(missing_ok=True)
    if not files.delays.exists():
        message = f"the load generator left no records; see {files.log.name}"
        raise trial_failed(FailureKind.BENCHMARK_FAILED, Phase.BENCHMARK, message)
    records = read_records(files.records)
    repeat = repeat_of(traffic, records, index)
    return repeat, too_late(read_delays(files.delays), repeat.metrics.get("p99_ttft_ms"))


def too_late(delays: OwnDelays, ttft_ms: float | None) -> str | None:
    """Return why a run cannot count: the generator's own delay at its 99th percentile beyond what is tolerable."""
    tolerable = max(TOLERABLE_DELAY_S, TOLERABLE_SHARE * (ttft_ms or 0.0) / 1000.0)
    found = {"sent requests": delays.late_p99_s, "read answers": delays.lag_p99_s}
    for what, delay in found.items():
        if delay is not None and delay > tolerable:
            return (
                f"the load generator {what} {1000 * delay:.1f} ms late (p99; {1000 * tolerable:.1f} ms are tolerable): "
                "the run cannot count; lower the rate, or give it a core of its own"
            )
    return None
