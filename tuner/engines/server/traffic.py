"""Send traffic to a running server: schedule, prompts and load generator, and the commands that run beside a server.

The trial's artifacts keep `requests-N.jsonl.gz`, one record per request with its class, schedule and times, and
`requests-N.json`, the delays of the generator itself.
"""

from __future__ import annotations

import json
import os
import select
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tuner
from records.trials import FailureKind, Phase, Repeat
from tuner.errors import trial_failed
from tuner.loadgen.client import API_KEY_VARIABLE
from tuner.loadgen.plan import PlannedRequest, Prompt, RequestPlan, write_plan
from tuner.loadgen.result import GeneratorDelays, RecordsError, read_delays, read_records
from tuner.processes.records import ProcessRecords
from tuner.processes.supervisor import start_server
from tuner.workloads.reading import UserText, read_texts
from tuner.workloads.request_class import TextFile
from tuner.workloads.run_metrics import repeat_of
from tuner.workloads.schedule import OfferedRequest, make_schedule
from tuner.workloads.traffic import Traffic


class Job(Protocol):
    """One run of a command."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until it ends; return whether it has ended."""

    @property
    def exit_code(self) -> int | None:
        """The exit code, -N for signal N; None while it runs, or if it is lost."""

    def cancel(self) -> None:
        """Kill it and its process group, and wait until it has ended."""


class PlainJob:
    """A command in a process of its own. It is recorded, so that the watchdog ends it with a killed worker."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path, records: ProcessRecords
    ) -> None:
        self._process = start_server(argv, environment, log, cwd, records, None, f"client {Path(argv[0]).name}")
        self._ended = select.poll()
        self._handle = os.pidfd_open(self._process.pid)
        self._ended.register(self._handle, select.POLLIN)
        weakref.finalize(self, os.close, self._handle)

    def wait(self, timeout_s: float) -> bool:
        return bool(self._ended.poll(1000 * timeout_s))

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code()

    def cancel(self) -> None:
        self._process.stop(0)


class ResultError(ValueError):
    """The result file is missing, is not a result, or has an impossible value.

    Attributes:
        written: whether there is a result; without one, the client's log may have the reason.
    """

    def __init__(self, message: str, *, written: bool = True) -> None:
        super().__init__(message)
        self.written = written


TOLERABLE_DELAY_S = 0.005
"""Delays of the generator up to this never make a run invalid."""

TOLERABLE_SHARE = 0.1
"""Delays up to this share of the run's p99 TTFT do not make it invalid either; the delays are also p99."""

GRACE_S = 60.0
"""How long the generator may take after its limit to write its records."""


@dataclass(frozen=True)
class TrafficFiles:
    """The files of one run of the traffic in the trial's folder."""

    folder: Path
    name: str

    @property
    def records(self) -> Path:
        """One record per request."""
        return self.folder / f"{self.name}.jsonl.gz"

    @property
    def delays(self) -> Path:
        """The generator's own delays."""
        return self.folder / f"{self.name}.json"

    @property
    def log(self) -> Path:
        """The output of the generator and of the making of prompts."""
        return self.folder / f"{self.name}.log"

    @property
    def progress(self) -> Path:
        """What has happened so far, of a run that is watched."""
        return self.folder / f"{self.name}-progress.jsonl"

    @property
    def plan(self) -> Path:
        """The generator's input; it is removed afterwards, because the records contain its schedule."""
        return self.folder / f"{self.name}-plan.jsonl"


class PromptTools(Protocol):
    """Makes the prompts of traffic.

    Attributes:
        records: where the load generator's process is recorded.
    """

    records: ProcessRecords

    def prompts(self, plan: Path, log: Path) -> Sequence[tuple[Prompt, int, int | None]]:
        """Return each request's prompt, its tokens, and the tokens of the recorded answer if there is one.

        Args:
            plan: the file with the requests, as `prompts/prompts.py` describes it.
            log: the file for what the tokenizer's library prints.

        Raises:
            TrialFailed: if the tokenizer cannot make prompts of these lengths.
        """


def start_traffic(
    tools: PromptTools,
    traffic: Traffic,
    index: int,
    files: TrafficFiles,
    url: str,
    model: str,
    tokenizer: str,
    limit_s: float,
    api_key: str | None = None,
    reuse_connections: bool = True,
    same_schedule: bool = False,
    watched: bool = False,
) -> Job:
    """Start the load generator for repeat `index` of the traffic; the caller must wait for the job or cancel it.

    Args:
        tools: makes the prompts.
        traffic: the workload.
        index: the repeat; its seed determines schedule and prompts.
        files: the files to write.
        url: the URL of the completions API.
        model: the model's name in requests.
        tokenizer: name or folder of the model's tokenizer.
        limit_s: seconds after which the generator ends the run.
        api_key: the key that the server requires; None: none.
        reuse_connections: as in `RequestPlan`.
        same_schedule: whether every repeat has the arrivals, classes and lengths of repeat 0, with texts of its own.
        watched: whether the generator writes its progress.

    Raises:
        TrialFailed: if the prompts cannot be made.
    """
    seed = traffic.repeat_seed(index)
    schedule_seed = traffic.repeat_seed(0) if same_schedule else seed
    requests = plan_requests(tools, traffic, schedule_seed, files, tokenizer, text_seed=seed)
    plan = RequestPlan(url, model, traffic.users, traffic.max_in_flight, traffic.timeout_s, limit_s, reuse_connections)
    return start_generator(plan, requests, files, tools.records, api_key, watched)


def plan_requests(
    tools: PromptTools, traffic: Traffic, seed: int, files: TrafficFiles, tokenizer: str, text_seed: int | None = None
) -> list[PlannedRequest]:
    """Return every request of the traffic with its prompt; the seeds are those of `make_schedule`.

    Raises:
        TrialFailed: if the prompts cannot be made.
    """
    schedule = make_schedule(traffic, seed, text_seed)
    plan = files.folder / f"{files.name}-prompts.json"
    run = seed if text_seed is None else text_seed
    requests = [_prompt_request(traffic, offered, run) for offered in schedule]
    plan.write_text(json.dumps({"tokenizer": tokenizer, "requests": requests}), encoding="utf-8")
    try:
        prompts = tools.prompts(plan, files.log)
    finally:
        plan.unlink(missing_ok=True)
    lasts = {each.session: each.turn for each in schedule}  # without a session, the only turn is 0
    return [
        _planned_request(traffic, offered, *prompt, continues=offered.turn < lasts[offered.session])
        for offered, prompt in zip(schedule, prompts, strict=True)
    ]


def start_generator(
    plan: RequestPlan,
    requests: Sequence[PlannedRequest],
    files: TrafficFiles,
    records: ProcessRecords,
    api_key: str | None = None,
    watched: bool = False,
) -> Job:
    """Start the load generator on a plan; the caller must wait for the job or cancel it."""
    write_plan(files.plan, plan, requests)
    for stale in (files.records, files.delays, files.progress):
        stale.unlink(missing_ok=True)
    result = files.records.with_suffix("")
    argv = [sys.executable, "-m", "tuner.loadgen", os.fspath(files.plan), os.fspath(result)]
    argv += [os.fspath(files.progress)] if watched else []
    return PlainJob(argv, _environment(os.environ, api_key), files.log, files.folder, records)


def _prompt_request(traffic: Traffic, offered: OfferedRequest, run: int) -> dict[str, Any]:
    """Return one request as `prompts/prompts.py` reads it; a recording's segments are those of the seed `run`."""
    kind = traffic.classes[offered.name]
    own = {"tokens": offered.input_tokens, "seed": offered.text_seed, "text": kind.text}
    if offered.goes_on:
        return {"shared": [], **own, "follows": True}
    shared: list[tuple[str | int, ...]] = []
    if traffic.system_prompt:
        shared.append(("system", traffic.system_prompt, *(("rules",) if traffic.has_made_text else ())))
    text_kind = (str(kind.text),) if kind.has_made_text else ()
    if kind.prefix is not None:
        shared.append((f"{offered.name}/{offered.document}", kind.prefix.tokens, *text_kind))
    shared += [(f"{offered.name}/{run}/{each.number}", each.tokens, *text_kind) for each in offered.segments]
    text = _text(traffic, offered)
    if text is not None:
        return {"shared": shared, "prompt": text.prompt, "answer": None if text.output_tokens else text.answer}
    return {"shared": shared, **own}


def _text(traffic: Traffic, offered: OfferedRequest) -> UserText | None:
    kind = traffic.classes[offered.name].text
    return (
        read_texts(kind.file).texts[offered.text] if isinstance(kind, TextFile) and offered.text is not None else None
    )


def _planned_request(
    traffic: Traffic, offered: OfferedRequest, prompt: Prompt, tokens: int, answer: int | None, *, continues: bool
) -> PlannedRequest:
    text = _text(traffic, offered)
    max_tokens = (text.output_tokens if text else None) or answer or offered.output_tokens
    assert max_tokens is not None  # a class has an `output` if its prompts do not state the length of their answers
    kind = traffic.classes[offered.name]
    if offered.goes_on:
        before = traffic.system_prompt + (kind.prefix.tokens if kind.prefix else 0) + offered.context_tokens
        tokens = before + (offered.input_tokens or 0)
    return PlannedRequest(
        offered.index,
        offered.name,
        offered.at_s,
        prompt,
        tokens,
        max_tokens,
        priority=kind.priority,
        adapter=offered.adapter,
        json_schema=kind.json_schema,
        session=offered.session,
        turn=offered.turn,
        pause_s=offered.pause_s,
        afresh=offered.afresh,
        continues=continues,
    )


def _environment(inherited: Mapping[str, str], api_key: str | None) -> dict[str, str]:
    """Return the generator's environment: the inherited one, with this package on its path and the server's key."""
    root = os.fspath(Path(tuner.__file__).parents[1])
    path = os.pathsep.join(part for part in (root, inherited.get("PYTHONPATH", "")) if part)
    return {**inherited, "PYTHONPATH": path, **({API_KEY_VARIABLE: api_key} if api_key else {})}


def read_traffic(traffic: Traffic, index: int, files: TrafficFiles) -> tuple[Repeat, str | None]:
    """Return repeat `index` from its records, and why it is invalid; None if it is valid.

    Raises:
        TrialFailed: if there are no records, or they are not readable.
    """
    files.plan.unlink(missing_ok=True)
    if not files.delays.exists():
        message = f"the load generator left no records; see {files.log.name}"
        raise trial_failed(FailureKind.BENCHMARK_FAILED, Phase.BENCHMARK, message)
    try:
        records, delays = read_records(files.records), read_delays(files.delays)
    except RecordsError as error:
        raise trial_failed(FailureKind.BENCHMARK_FAILED, Phase.BENCHMARK, f"the load generator's {error}") from None
    repeat = repeat_of(traffic, records, index)
    return repeat, lateness_problem(delays, repeat.metrics.get("p99_ttft_ms"))


def lateness_problem(delays: GeneratorDelays, ttft_ms: float | None) -> str | None:
    """Return a message if the generator's own p99 delay makes a run invalid; None if it is tolerable."""
    tolerable = max(TOLERABLE_DELAY_S, TOLERABLE_SHARE * (ttft_ms or 0.0) / 1000.0)
    by_action = {"sent requests": delays.late_p99_s, "read answers": delays.lag_p99_s}
    for action, delay in by_action.items():
        if delay is not None and delay > tolerable:
            return (
                f"the load generator {action} {1000 * delay:.1f} ms late "
                f"(p99; {1000 * tolerable:.1f} ms are tolerable); "
                "lower the request rate, or give the generator a core of its own"
            )
    return None
