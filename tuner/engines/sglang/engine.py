"""The SGLang engine: find its Python, check configurations, start servers, and read their facts and failures.

The failure table has texts of the sources of SGLang 0.5.17 and 0.5.23; `tests/data/logs/sglang` has recordings. A
scheduler that fails logs its traceback after "Scheduler hit an exception"; the server then kills itself and all its
processes by SIGKILL, so that its exit code says nothing. An error in the arguments is a traceback of the main process.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from records.trials import FailureKind, ServerFacts
from tuner.engines.base import EngineSettings
from tuner.engines.kind import Found
from tuner.engines.server import failures
from tuner.engines.server.causes import COMPILER, LOADED, MISSING_PACKAGE, PROXY, REINSTALL, STARTING, broken, rows
from tuner.engines.server.devices import worker_devices
from tuner.engines.server.failures import with_shared_rows
from tuner.engines.server.metrics import MetricNames
from tuner.engines.server.program_engine import find_named
from tuner.engines.server.python_engine import PythonEngine, PythonInstallation, PythonPackage, python_installation
from tuner.engines.server.running_server import HOST, GeneratorServer, Readings
from tuner.engines.server.token_prompts import TokenTools, ordinary_tokens, tokenizer_of
from tuner.engines.server.unmet import unmet_requirements
from tuner.engines.sglang.kind import SGLANG
from tuner.errors import SettingError
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
    *broken(
        r"No module named '?(?:sglang|vllm)",
        r"No package metadata was found for (?:sglang|flashinfer)",
        step=MISSING_PACKAGE,
    ),
    *broken(
        r"is not installed correctly|Please (?:re)?install|Please uninstall the old version",
        r"Could not load any common_ops library",
        step=REINSTALL,
    ),
    *broken(
        r"Could not find CUDA installation|Error building extension|[Nn]inja (?:build|error)|ninja exited",
        step=COMPILER,
    ),
    *broken(r"res=<Response \[50[234]\]>", step=PROXY),
    *rows(FailureKind.GPU_BUSY, r"The memory capacity is unbalanced\. Some GPUs may be occupied by other processes"),
)
"""For each causal line of a log, the first matching row applies; the shared rows follow."""

TEXTS = with_shared_rows(
    CAUSES,
    consequences=r"scheduler died during initialization|Received sigquit|SIGQUIT received|EOFError",
    died=r"Received sigquit|SIGQUIT received|scheduler died during initialization|crashed with exit code",
    prefix=r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ?",
    anchor=r"hit an exception",
)

TOO_LONG = re.compile(
    r"The input \(\d+ tokens\) is longer than the model's context length \(\d+ tokens\)|"
    r"Requested token count exceeds the model's maximum context length of \d+ tokens|"
    r"Input length \(\d+ tokens\) exceeds the maximum allowed length \(\d+ tokens\)|"
    r"Request prompt exceeds the KV memory budget"
)

classify = partial(failures.classify, texts=TEXTS)
"""Returns the typed failure of a server that ended; see `failures.classify`."""

ACCEPT_RATE = "sglang:spec_accept_rate"
ACCEPT_LENGTH = "sglang:spec_accept_length"

METRICS = MetricNames(
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    kv_usage="sglang:token_usage",
    preemptions="sglang:num_retracted_requests_total",
    prefix_hits="sglang:cached_tokens_total",
    prefix_queries="sglang:prompt_tokens_total",
    queue_sum="sglang:queue_time_seconds_sum",
    queue_count="sglang:queue_time_seconds_count",
    others=(ACCEPT_RATE, ACCEPT_LENGTH),
    shares=frozenset({ACCEPT_RATE, ACCEPT_LENGTH}),
    rank_labels=frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "attn_tp_rank", "attn_cp_rank", "moe_dp_rank"}),
    hides_zeros=True,
)
"""A request that is retracted gives up its place and is computed again. `dp_rank` labels another copy of the model."""

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
    the model. The attention backend is the one that SGLang chose; a given one is in a line that is too long to be read.
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


def with_acceptance(facts: ServerFacts, after: Mapping[str, float]) -> ServerFacts:
    """Return `facts` with the acceptance of drafts, which SGLang states as a present value, not by counters."""
    rate, length = after.get(ACCEPT_RATE), after.get(ACCEPT_LENGTH)
    if length is None or length <= 0:
        return facts
    return replace(facts, spec_acceptance_rate=rate, spec_tokens_per_draft=length - 1)


class SglangServer(GeneratorServer):
    """See `Server`."""

    reads = Readings(classify, facts_from_log, METRICS, TOO_LONG)
    reuse_connections = True

    def _with_metrics(self, facts: ServerFacts, before: Mapping[str, float], after: Mapping[str, float]) -> ServerFacts:
        return with_acceptance(super()._with_metrics(facts, before, after), after)

    def _make_tools(self) -> TokenTools:
        tokens = ordinary_tokens(self._model.tokenizer)
        return TokenTools(tokens, self._records, tokenizer_of(self.url, self._api_key))


VARIABLE = "TUNER_SGLANG"
NAME_THE_PYTHON = "name the Python that has SGLang, such as VENV/bin/python"
PACKAGE = PythonPackage("SGLang", Path(__file__).with_name("probe.py"), NAME_THE_PYTHON)


def find_python(given: str | None) -> Path:
    """Return the Python that runs SGLang: the given one, TUNER_SGLANG, this one, or the one beside `sglang` on PATH.

    Raises:
        UserError: if there is none, or the named one cannot be run.
    """
    named = find_named("sglang", given, VARIABLE, NAME_THE_PYTHON, None)
    if named is not None:
        return named
    if importlib.util.find_spec("sglang") is not None:
        return Path(sys.executable)
    script = shutil.which("sglang")
    beside = None if script is None else Path(script).absolute().with_name("python")
    if beside is not None and os.access(beside, os.X_OK):
        return beside
    remedy = f"`pip install sglang` in an environment of its own, and put its Python into {VARIABLE}"
    rule = "no SGLang found: not in this Python, and no sglang on PATH"
    raise SettingError("sglang", None, rule, remedy)


@cache
def installation(python: Path) -> PythonInstallation:
    """Return the installation of a Python.

    Raises:
        UserError: if the program is no Python, or has no SGLang.
    """
    return python_installation(PACKAGE, python, python)


class SglangEngine(PythonEngine[SglangServer]):
    """SGLang on one worker; see `Engine`."""

    kind = SGLANG
    dropped_prefixes = SGLANG.variables

    def __init__(self, settings: EngineSettings) -> None:
        """Find the Python that has SGLang.

        Raises:
            UserError: if there is none.
        """
        found = installation(find_python(settings.executable))
        super().__init__(settings, found, worker_devices(settings.device_index, settings.gpus))

    def _command(self, launch: LaunchSpec, port: int) -> tuple[str, ...]:
        """Return the command; without `--enable-metrics` the server would have no facts."""
        return (
            *(str(self._found.executable), "-m", "sglang.launch_server", "--model-path", launch.model.name),
            *("--served-model-name", launch.model.served_name, "--host", HOST, "--port", str(port)),
            *("--enable-metrics", *launch.base_argv, *launch.argv),
        )

    def _server(self, spec: TrialSpec, **started: Any) -> SglangServer:
        return SglangServer(records=self._records, tokenizers=self._tokenizers, **started)


def find(given: str | None) -> Found:
    """Return the installation that a setting names, or the one of this machine for None; see `EngineKind`."""
    return Found(installation(find_python(given)).executable)


def facts(found: Found, home: Path) -> Iterator[tuple[str, Any]]:
    """Yield what `tuner doctor` shows of an installation; see `EngineKind`."""
    yield "version", installation(found.executable).version
    yield "unmet", unmet_requirements(found.executable, "sglang")
