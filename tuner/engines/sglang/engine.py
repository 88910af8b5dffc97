"""The SGLang engine: find its Python, check configurations, start servers, and read their facts and failures.

The texts are those of the sources of SGLang 0.5.17 and 0.5.23; `tests/data/logs/sglang` has recordings. A scheduler
that fails logs its traceback after "Scheduler hit an exception"; the server then kills itself and all its processes by
SIGKILL, so that its exit code says nothing. An error in the arguments is a traceback of the main process.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from records.trials import Failure, FailureKind, Phase, Provenance, Repeat, ServerFacts
from tuner.engines.base import EngineInfo, EngineSettings
from tuner.engines.server import failures as python_logs
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.failures import CAUSES as PYTHON_CAUSES
from tuner.engines.server.failures import CONSEQUENCES as PYTHON_CONSEQUENCES
from tuner.engines.server.failures import LOADED, STARTING, LogTexts, read_log, rows
from tuner.engines.server.flags import ServeFlags, flags_from_dump, load_flags, write_dump
from tuner.engines.server.metrics import Counters, StateMetrics, with_benchmark_metrics
from tuner.engines.server.program_engine import ProgramEngine, named_program
from tuner.engines.server.running_server import HOST, GeneratorServer
from tuner.engines.server.token_prompts import TokenTools, ordinary_tokens, tokenized
from tuner.engines.sglang import kind
from tuner.engines.user_command import api_key_in
from tuner.errors import SettingError, UserError, trial_failed
from tuner.processes.records import ProcessRecords
from tuner.specs import LaunchSpec, TrialSpec

CAUSES = (
    *rows(
        FailureKind.KV_CACHE_TOO_SMALL,
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        r"Loaded weights leave no GPU memory for the KV cache",
        r"leaves no room for the full KV pool",
        phases=STARTING,
    ),
    *rows(
        FailureKind.OUT_OF_MEMORY_LOAD,
        r"(?:Prefill|Decode) out of memory\. Try to lower your batch size",
        r"alloc_req_slots runs out of memory",
        phases=LOADED,
    ),
    *rows(
        FailureKind.PORT_TAKEN,
        r"\bat \d+ is not available",
        r"Port is already in use",
        message="another program took the port",
    ),
    *rows(
        FailureKind.ENVIRONMENT_BROKEN,
        r"No module named 'sglang",
        r"No package metadata was found for (?:sglang|flashinfer)",
        r"is not installed correctly|Please (?:re)?install|Please uninstall the old version",
        r"Could not load any common_ops library",
        r"Could not find CUDA installation|Error building extension|[Nn]inja (?:build|error)|ninja exited",
    ),
    *rows(FailureKind.GPU_BUSY, r"The memory capacity is unbalanced\. Some GPUs may be occupied by other processes"),
    *PYTHON_CAUSES,
    *rows(
        FailureKind.INVALID_CONFIGURATION,
        r"^(?:ValueError|AssertionError|NotImplementedError)\b",
        phases=STARTING,
        general=True,
    ),
)
"""For each causal line of a log, the first matching row applies; those of every server in Python are vLLM's."""

TEXTS = LogTexts(
    causes=CAUSES,
    consequences=re.compile(
        rf"{PYTHON_CONSEQUENCES.pattern}|scheduler died during initialization|Received sigquit|SIGQUIT received|"
        r"EOFError"
    ),
    died=re.compile(r"Received sigquit|SIGQUIT received|scheduler died during initialization|crashed with exit code"),
    prefix=re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ?"),
    anchor=re.compile(r"hit an exception"),
)

_TOO_LONG = re.compile(
    r"The input \(\d+ tokens\) is longer than the model's context length \(\d+ tokens\)|"
    r"Requested token count exceeds the model's maximum context length of \d+ tokens|"
    r"Input length \(\d+ tokens\) exceeds the maximum allowed length \(\d+ tokens\)|"
    r"Request prompt exceeds the KV memory budget"
)


def classify(log_text: str, exit_code: int | None, phase: Phase) -> Failure:
    """Return the typed failure of a server that ended.

    Args:
        log_text: the text of its log.
        exit_code: its exit code; -N if signal N ended it, None if unknown.
        phase: the trial's phase in which it ended.
    """
    return python_logs.classify(log_text, exit_code, phase, TEXTS)


def length_problem(error: str) -> str | None:
    """Return why the server refused a request for its length, as its answer says; None if it was not that."""
    found = _TOO_LONG.search(error)
    return None if found is None else found[0]


def token_tools(tokenizer: str, url: str, records: ProcessRecords, api_key: str | None = None) -> TokenTools:
    """Return what makes the prompts for a server.

    Args:
        tokenizer: a model's folder, or a hub name that is downloaded.
        url: the server's, without `/v1`.
        records: where the load generator's process is recorded.
        api_key: the key that the server requires; None: none.

    Raises:
        SettingError: if the tokenizer cannot be read, or has no tokens.
    """

    def tokenize(text: str, special: bool) -> list[int]:
        return tokenized(url, {"prompt": text, "add_special_tokens": special}, api_key)

    return TokenTools(ordinary_tokens(tokenizer), records, tokenize)


RUNNING = "sglang:num_running_reqs"
WAITING = "sglang:num_queue_reqs"
TOKEN_USAGE = "sglang:token_usage"
RETRACTED = "sglang:num_retracted_requests_total"
CACHED_TOKENS = "sglang:cached_tokens_total"
PROMPT_TOKENS = "sglang:prompt_tokens_total"
QUEUE_SUM = "sglang:queue_time_seconds_sum"
QUEUE_COUNT = "sglang:queue_time_seconds_count"
ACCEPT_RATE = "sglang:spec_accept_rate"
ACCEPT_LENGTH = "sglang:spec_accept_length"

COUNTERS = Counters(RETRACTED, CACHED_TOKENS, PROMPT_TOKENS, QUEUE_SUM, QUEUE_COUNT)
"""A request that is retracted gives up its place and is computed again, as one that vLLM preempts."""

STATE = StateMetrics(
    RUNNING,
    WAITING,
    TOKEN_USAGE,
    RETRACTED,
    (
        *(RUNNING, WAITING, TOKEN_USAGE, RETRACTED, CACHED_TOKENS, PROMPT_TOKENS),
        *(QUEUE_SUM, QUEUE_COUNT, ACCEPT_RATE, ACCEPT_LENGTH),
    ),
)

_GB = r"(\d+\.\d+) GB"
_SIZES = re.compile(r"max_total_num_tokens=(\d+), .*max_running_requests=(\d+), context_len=(\d+)")
_KV = re.compile(rf"KV Cache (?:is )?allocated\..*?(?:K size: {_GB}, V size: {_GB}|KV size: {_GB})", re.IGNORECASE)
_WEIGHTS = re.compile(rf"Load weight end\..*mem usage={_GB}")
_GRAPHS = re.compile(
    rf"\[\d+-\d+-\d+ [\d:]+([^\]]*)\] Capture [^\[\n]*graph end\. .*?elapsed=(\d+\.\d+) s, mem usage={_GB}",
    re.IGNORECASE,
)
_CHOSEN = re.compile(r"Attention backend not specified\. Use (\w+) backend")


def facts_from_log(text: str) -> ServerFacts:
    """Return the facts of a log; None for each that it lacks. SGLang's GB are GiB.

    Of a server of several GPUs they are those of the first one that the log names, and the tokens those of one copy of
    the model.
    The attention backend is that which SGLang chose; a given one is only in a line that is too long to be read.
    """
    sizes, kv, weights = _SIZES.search(text), _KV.search(text), _WEIGHTS.search(text)
    backend = _CHOSEN.search(text)
    ranks = _GRAPHS.findall(text)
    graphs = [(float(seconds), float(size)) for rank, seconds, size in ranks if rank == ranks[0][0]]
    facts = ServerFacts(
        kv_cache_gib=None if kv is None else sum(float(part) for part in kv.groups() if part is not None),
        weights_gib=None if weights is None else float(weights[1]),
        graph_capture_s=sum(seconds for seconds, _ in graphs) if graphs else None,
        graph_gib=sum(size for _, size in graphs) if graphs else None,
        attention_backend=None if backend is None else backend[1],
    )
    if sizes is None:
        return facts
    tokens, running, context = (int(part) for part in sizes.groups())
    fitting = min(float(running), tokens / context) if context else None
    return replace(facts, kv_cache_tokens=tokens, max_concurrency=fitting)


def with_metrics(
    facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float], usage: list[float]
) -> ServerFacts:
    """Return `facts` with the differences between two scrapes; a counter that was never raised is not on the page.

    SGLang states the acceptance of drafts as a present value, not as counters.
    """
    found = with_benchmark_metrics(facts, before, {RETRACTED: 0.0, CACHED_TOKENS: 0.0, **after}, usage, COUNTERS)
    rate, length = after.get(ACCEPT_RATE), after.get(ACCEPT_LENGTH)
    drafted = length is not None and length > 0
    return replace(
        found,
        spec_acceptance_rate=rate if drafted else None,
        spec_tokens_per_draft=length - 1 if drafted and length is not None else None,
    )


class SglangServer(GeneratorServer):
    """See `Server`."""

    state_metrics = STATE
    reuse_connections = True

    def _facts(self) -> ServerFacts:
        facts = facts_from_log(read_log(self._log))
        if self._before is None or self._after is None:
            return facts
        return with_metrics(facts, self._before, self._after, self._usage)

    def _classified(self, log_text: str, exit_code: int | None, phase: Phase) -> Failure:
        return classify(log_text, exit_code, phase)

    def _make_tools(self) -> TokenTools:
        return token_tools(self._model.tokenizer, f"http://{HOST}:{self.port}", self._records, self._api_key)

    def _check_sent(self, repeat: Repeat, index: int, phase: Phase) -> None:
        if repeat.completed:
            return
        errors = (record.error for record in self._sent(index, phase) if record.error is not None)
        problem = next((found for error in errors if (found := length_problem(error)) is not None), None)
        if problem is not None:
            message = f"none of {repeat.offered} requests succeeded: {problem}"
            raise trial_failed(FailureKind.KV_CACHE_TOO_SMALL, phase, message)


ENGINE = "SGLang"
PACKAGE = "sglang"
VARIABLE = "TUNER_SGLANG"
PROBE = Path(__file__).with_name("probe.py")

_PROBE_S = 120.0
_FLAGS_S = 600.0
_NAME_THE_PYTHON = "name the Python that has SGLang, such as VENV/bin/python"


def find_python(given: str | None = None, environment: Mapping[str, str] | None = None) -> Path:
    """Return the Python that runs SGLang: the given one, TUNER_SGLANG, this one, or the one beside `sglang` on PATH.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    environment = os.environ if environment is None else environment
    if given:
        return named_program(given, environment, lambda rule: SettingError("sglang", given, rule, _NAME_THE_PYTHON))
    named = environment.get(VARIABLE)
    if named:
        return named_program(
            named, environment, lambda rule: UserError(f"{VARIABLE}={named!r}: {rule}; {_NAME_THE_PYTHON}")
        )
    if importlib.util.find_spec(PACKAGE) is not None:
        return Path(sys.executable)
    script = shutil.which(PACKAGE, path=environment.get("PATH"))
    beside = None if script is None else Path(script).absolute().with_name("python")
    if beside is not None and os.access(beside, os.X_OK):
        return beside
    remedy = f"`pip install {PACKAGE}` in an environment of its own, and put its Python into {VARIABLE}"
    rule = f"no SGLang found: not in this Python, and no {PACKAGE} on PATH"
    raise SettingError("sglang", None, rule, remedy)


@dataclass(frozen=True)
class Installation:
    """One installed SGLang: its Python, its version, and the packages of `probe.PACKAGES` that are beside it."""

    python: Path
    version: str
    packages: frozenset[str]

    def flags(self, home: Path) -> ServeFlags | None:
        """Return the flags of SGLang's own parser, cached in `home`; None if it cannot be imported.

        The first call takes the time of an import, 15 s and more.
        """
        text = f"{self.python}|{self.python.stat().st_mtime_ns}|{self.version}"
        path = home / "sglang" / f"flags-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
        cached = load_flags(path, ENGINE)
        if cached is not None:
            return cached
        try:
            dump = _probed(self.python, _FLAGS_S, "--flags")
        except UserError:
            return None
        write_dump(path, {"flags": dump["flags"]})
        return flags_from_dump(dump["flags"], ENGINE)


@cache
def installation(python: Path) -> Installation:
    """Return the installation of a Python.

    Raises:
        UserError: if the program is no Python, or has no SGLang.
    """
    found = _probed(python, _PROBE_S)
    if found["version"] is None:
        raise UserError(f"{python} has no SGLang; {_NAME_THE_PYTHON}")
    return Installation(python, str(found["version"]), frozenset(found["packages"]))


def _probed(python: Path, limit_s: float, *arguments: str) -> dict[str, Any]:
    """Return what the probe prints as its last line.

    Raises:
        UserError: if it does not run.
    """
    try:
        done = subprocess.run(
            [python, PROBE, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python} does not run ({error}); {_NAME_THE_PYTHON}") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{python} does not answer as a Python ({last}); {_NAME_THE_PYTHON}") from None
    return found


class SglangEngine(ProgramEngine[SglangServer]):
    """SGLang on one worker; see `Engine`."""

    dropped_prefixes = ("SGLANG_", "SGL_")

    def __init__(self, settings: EngineSettings) -> None:
        """Find the Python that has SGLang.

        Raises:
            UserError: if there is none.
        """
        self._found = installation(find_python(settings.executable))
        self._tokenizers = settings.tokenizers
        super().__init__(settings, worker_devices(settings.device_index, settings.gpus))

    @cached_property
    def _flags(self) -> ServeFlags | None:
        return self._found.flags(self._home)

    def info(self) -> EngineInfo:
        """Return the installation. The first call for a version reads SGLang's parser, which takes 15 s and more."""
        found = self._found
        return EngineInfo(
            name=kind.SGLANG.name,
            version=found.version,
            executable=str(found.python),
            flags=self._flags.names if self._flags else None,
            provenance=Provenance.MEASURED,
            packages=found.packages,
            parser=self._flags,
        )

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why SGLang's parser refuses the trial; None if it accepts it.

        SGLang checks combinations of values when a server starts, before it loads the model. A check of its own would
        import SGLang once more for each trial.
        """
        words = (*spec.launch.base_argv, *spec.launch.argv)
        refused = None if self._flags is None else self._flags.problem(words)
        return None if refused is None else Failure(FailureKind.INVALID_CONFIGURATION, Phase.CHECK, refused)

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the command; without `--enable-metrics` the server would have no facts."""
        return (
            *(str(self._found.python), "-m", "sglang.launch_server", "--model-path", launch.model.name),
            *("--served-model-name", launch.model.served_name, "--host", HOST, "--port", str(port)),
            *("--enable-metrics", *launch.base_argv, *launch.argv),
        )

    def _server(self, spec: TrialSpec, words: tuple[str, ...], **started: Any) -> SglangServer:
        return SglangServer(records=self._records, tokenizers=self._tokenizers, **started)

    def _api_key(self, words: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
        return api_key_in(words)
