"""The use case of `tuner server load`: send traffic once to a running server."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from records.trials import Repeat
from storage import open_store
from tuner.engines.server.devices import base_environment
from tuner.engines.server.token_prompts import (
    GGUF_SUFFIX,
    LibraryTools,
    TokenTools,
    common_tokens,
    find_tokenizer,
    gguf_tools,
    tokenizer_of,
    with_common_tokens,
)
from tuner.engines.server.traffic import GRACE_S, PromptTools, TrafficFiles, read_traffic, start_traffic
from tuner.engines.vllm.toolbox import Toolbox, find_executable, installation
from tuner.errors import SettingError, TrialFailed, TunerError, UserError, as_text
from tuner.files import home
from tuner.http import JSON, HttpError, ReadLimits, Reply, fetch
from tuner.loadgen.client import API_KEY_VARIABLE
from tuner.loadgen.result import read_records
from tuner.processes.records import ProcessRecords
from tuner.scoring.goals import Slo, parse_slo
from tuner.settings.study import GoalSettings, WorkloadSettings
from tuner.study.specification.resolve_workload import check_slo, find_goals, find_workload
from tuner.transport import words_of
from tuner.use_cases.places import check_folder, find_study, storage_url
from tuner.workloads.presets import load_preset
from tuner.workloads.results import RequestRecord, failures_line
from tuner.workloads.spec import ClosedLoop, Suite, Workload, merge_repeats, read_workload
from tuner.workloads.traffic import Traffic

_HTTP_TIMEOUT_S = 10.0
KEY_VARIABLES = (API_KEY_VARIABLE, "VLLM_API_KEY", "LLAMA_API_KEY")
"""Environment variables with the server's API key, the first that is set; vLLM and llama.cpp read the others."""

_NO_SERVER = "no OpenAI-compatible server answers there"
_OTHER = "give the address of one"
_BUSY = (408, 429, *range(500, 600))
"""Statuses of a server that is there and cannot answer now."""


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The traffic, the server and the SLOs; exactly one of workloads, preset and study is given.

    Of several tokenizers, the first is the server's, and prompts have the token ids that all of them share, as in a
    study of several engines; without one it is the model's. `keys` are the environment variables with the server's API
    key, the first that is set.
    """

    url: str
    model: str | None
    tokenizers: tuple[str, ...]
    seed: int
    limit_s: float
    vllm: str | None
    output: Path
    workloads: tuple[str, ...] = ()
    preset: str | None = None
    study: str | None = None
    rate: float | None = None
    slos: tuple[str, ...] = ()
    storage: str | None = None
    new_connections: bool = False
    keys: tuple[str, ...] = KEY_VARIABLES


@dataclass(frozen=True)
class LoadResult:
    """The measurements of the traffic.

    `invalid` is the reason why they are not valid, None if they are. `failures` has a line for each workload of which
    requests failed, with their number by status and the first reason.
    """

    repeat: Repeat
    invalid: str | None
    traffic: Traffic | Suite
    slos: tuple[Slo, ...]
    folder: Path
    failures: tuple[str, ...] = ()

    @property
    def records(self) -> list[RequestRecord]:
        """Every request, the workloads of a suite one after another."""
        parts = len(self.traffic.loads) if isinstance(self.traffic, Suite) else 1
        return [record for place in range(parts) for record in read_records(_files(self.folder, place).records)]

    @property
    def slos_met(self) -> dict[str, bool]:
        """Each SLO and whether it holds."""
        return {str(slo): slo.met(self.repeat.metrics.get(slo.metric)) for slo in self.slos}


def send_load(settings: LoadSettings) -> LoadResult:
    """Send the traffic once and return its measurements.

    Raises:
        UserError: for a setting that cannot work, or a server that does not answer.
        TunerError: when the load generator fails.
    """
    with LoadSender(settings) as sender:
        return sender.send(settings.seed, settings.output)


class LoadSender:
    """Sends traffic to one server, as often as it is asked to; it keeps the tools that make the prompts."""

    def __init__(self, settings: LoadSettings) -> None:
        """Check the settings, and ask the server for its model.

        Raises:
            UserError: for a setting that cannot work, or a server that does not answer.
        """
        self._settings = settings
        self.traffic, self.slos = _traffic(settings)
        self.model, root = served_model(settings.url, settings.model, settings.keys)
        check_folder(settings.output)
        self.tokenizer = next(iter(settings.tokenizers), root)
        self._stack = ExitStack()
        self._tools = _common_tools(settings, self.model) or _prompt_tools(settings, self.tokenizer, self._stack)

    def __enter__(self) -> LoadSender:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, seed: int, output: Path, traffic: Traffic | Suite | None = None) -> LoadResult:
        """Send the traffic once, or another form of it; the recorded requests go to `output`.

        Raises:
            TunerError: when the load generator fails.
        """
        sent = (self.traffic if traffic is None else traffic).model_copy(update={"seed": seed})
        output.mkdir(parents=True, exist_ok=True)
        parts = sent.parts() if isinstance(sent, Suite) else {"": sent}
        found, reasons, failures = [], [], []
        try:
            for place, (name, part) in enumerate(parts.items()):
                files = _files(output, place)
                warm = part.warmup()
                if warm is not None:
                    self._send(warm, place, files)
                repeat, late = self._send(part, place, files)
                found.append((name, repeat))
                reasons += [late] if late is not None else []
                failed = failures_line(read_records(files.records))
                if failed is not None:
                    failures.append(f"{name}: {failed}" if name else failed)
        except TrialFailed as error:
            raise TunerError(f"the load generator failed: {error.failure.message}") from None
        whole = found[0][1] if isinstance(sent, Traffic) else merge_repeats(0, found)
        return LoadResult(whole, "; ".join(reasons) or None, sent, self.slos, output, tuple(failures))

    def _send(self, traffic: Traffic, index: int, files: TrafficFiles) -> tuple[Repeat, str | None]:
        """Send one workload; return its measurements, and why they are not valid (None: they are)."""
        settings = self._settings
        job = start_traffic(
            self._tools,
            traffic,
            index,
            files,
            f"{settings.url}/v1/completions",
            self.model,
            self.tokenizer,
            settings.limit_s,
            server_key(settings.keys),
            reuse_connections=not (settings.new_connections or isinstance(self._tools, TokenTools)),
        )
        try:
            job.wait(settings.limit_s + GRACE_S)
        finally:
            job.cancel()
        return read_traffic(traffic, index, files)


def _files(folder: Path, index: int) -> TrafficFiles:
    """Return the files of a workload by its place in the suite."""
    return TrafficFiles(folder.absolute(), f"requests-{index}")


def _common_tools(settings: LoadSettings, model: str) -> PromptTools | None:
    """Return tools that draw the tokens that several tokenizers share; None for one, or if the vocabularies differ."""
    tokens = common_tokens(settings.tokenizers) if len(settings.tokenizers) > 1 else ()
    if not tokens:
        return None
    first, records, key = settings.tokenizers[0], ProcessRecords(home() / "processes"), server_key(settings.keys)
    if first.endswith(GGUF_SUFFIX):
        return with_common_tokens(gguf_tools(first, settings.url, records, key), settings.tokenizers)

    return TokenTools(tokens, records, tokenizer_of(settings.url, key, model=model))


def _prompt_tools(settings: LoadSettings, tokenizer: str, stack: ExitStack) -> PromptTools:
    """Return vLLM's tools, which end with the stack; without a vLLM or for a wrapper, the package `tokenizers`.

    A GGUF file has its own: its server is llama.cpp's, which takes the ids of tokens.
    """
    vllm = settings.vllm
    if tokenizer.endswith(GGUF_SUFFIX):
        return gguf_tools(tokenizer, settings.url, ProcessRecords(home() / "processes"), server_key(settings.keys))
    try:
        executable = find_executable(vllm)
    except UserError:
        if vllm or os.environ.get("TUNER_VLLM"):
            raise
        return LibraryTools(find_tokenizer(tokenizer), ProcessRecords(home() / "processes"))
    found = installation(executable, home())
    if found.python is None:
        return LibraryTools(find_tokenizer(tokenizer, executable), ProcessRecords(home() / "processes"))
    tools = Toolbox(found, home(), base_environment(os.environ))
    stack.callback(tools.close)
    return tools


def _traffic(settings: LoadSettings) -> tuple[Traffic | Suite, tuple[Slo, ...]]:
    given = [name for name in (settings.workloads or None, settings.preset, settings.study) if name is not None]
    if len(given) != 1:
        rule = "exactly one of {workload}, {preset} and {study} names the traffic to send"
        raise SettingError("workload", None, rule, "give one")
    slos: tuple[str, ...] = settings.slos
    found: Workload
    if settings.study is not None:
        store = open_store(storage_url(settings.storage, create=False))
        premise = find_study(store, settings.study).premise
        store.close()
        found = read_workload(premise["workload"])
        known = tuple(map(check_slo, slos)) or tuple(map(parse_slo, premise["slos"]))
        if isinstance(found, Suite) and settings.rate is not None:
            rule = f"a rate is for one workload, and study {settings.study!r} has several"
            raise SettingError("rate", settings.rate, rule, "leave it out")
        if isinstance(found, Traffic) and settings.rate is not None:
            found = found.at_rate(settings.rate)
    else:
        preset = load_preset(settings.preset or "mixed")
        found = find_workload(preset, WorkloadSettings(workload=settings.workloads, rate=settings.rate))
        known = find_goals(preset, found, GoalSettings(slo=slos), own=not settings.workloads).slos
    if isinstance(found, ClosedLoop):
        raise UserError("this workload is a closed loop, not traffic; run `vllm bench serve` instead")
    return found, known


def server_key(names: Sequence[str] = KEY_VARIABLES) -> str | None:
    """Return the API key of the server from the first of these environment variables; None without one."""
    return next((key for name in names if (key := os.environ.get(name))), None)


def served_model(url: str, model: str | None, keys: Sequence[str] = KEY_VARIABLES) -> tuple[str, str]:
    """Return the model's name in requests and the location of its tokenizer, as the server reports them.

    Args:
        url: the server's, without `/v1`.
        model: the name; None: the first that the server lists.
        keys: environment variables with the server's API key.

    Raises:
        SettingError: if no server answers there, it needs an API key, or it does not serve the model.
    """
    key = server_key(keys)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = fetch(f"{url}/v1/models", ReadLimits(_HTTP_TIMEOUT_S, types=JSON), headers=headers)
    except HttpError as error:
        rule = error.problem if error.lasting else f"{_NO_SERVER} ({error.problem})"
        remedy = error.remedy or (_OTHER if error.connected else "start one")
        raise SettingError("url", url, as_text(rule), remedy) from None
    listed = _listed(url, reply, key)
    if not listed:
        raise SettingError("url", url, "the server lists no model", "load one there")
    name = model or next(iter(listed))
    if name not in listed:
        raise SettingError("model", model, f"the server at {url} serves {', '.join(listed)}")
    return name, listed[name]


def _listed(url: str, reply: Reply, key: str | None) -> dict[str, str]:
    """Return the models that a server lists, each with the location of its tokenizer."""
    if reply.status in (401, 403):
        rule = f"the server answers {reply.status}: it needs {'another' if key else 'an'} API key"
        raise SettingError("url", url, rule, f"set {' or '.join(KEY_VARIABLES)}")
    shown = words_of(reply.text)[:80] or "an empty text"
    if reply.location is not None and reply.status in range(300, 400):
        rule = f"the server answers {reply.status} and refers to {reply.location[:200]}"
        raise SettingError("url", url, as_text(rule), "give the address that answers itself")
    if reply.status in _BUSY:
        rule = f"the server cannot answer now: {reply.status} to /v1/models: {shown}"
        raise SettingError("url", url, as_text(rule), "see its log, and try again when it is ready")
    try:
        found = json.loads(reply.body)
        models = found if isinstance(found, list) else found["data"]  # Together sends the list alone, Ollama null
        return {str(each["id"]): str(each.get("root") or each["id"]) for each in models or ()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        rule = f"{_NO_SERVER} (it answers {reply.status} to /v1/models: {shown})"
        raise SettingError("url", url, as_text(rule), _OTHER) from None
