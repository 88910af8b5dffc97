"""The load generators under comparison: the command of each, and how its records are read."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.loadgen.records import (
    GeneratorRecord,
    GeneratorResult,
    RequestStream,
    SecondsArray,
    least_delay,
    sent_times,
    shifted,
)
from tuner.loadgen.plan import PlannedRequest, RequestPlan, write_plan
from tuner.loadgen.result import read_records
from tuner.workloads.arrivals import Constant, Poisson
from tuner.workloads.lengths import Length
from tuner.workloads.request_class import RequestClass
from tuner.workloads.schedule import make_schedule
from tuner.workloads.traffic import Traffic

MODEL_NAME = "fake"
PROMPT_WORDS = 32
PLAN_LIMIT_S = 3600.0
ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


class LoadGenerator(ABC):
    """One load generator.

    Attributes:
        name: as printed.
        package: the Python package whose version is printed.
        environment: variables of its process.
        runs_in_repository: whether it runs in the repository's folder; otherwise in the run's folder.
        program: its executable.
        tokenizer: a tokenizer's folder.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    environment: ClassVar[Mapping[str, str]] = OFFLINE
    runs_in_repository: ClassVar[bool] = False

    def __init__(self, program: Path, tokenizer: Path) -> None:
        self.program = program
        self.tokenizer = tokenizer

    def version(self) -> str:
        """Return the installed version."""
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        words = [str(self.program.with_name("python")), "-c", code]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    @abstractmethod
    def prepare(self, stream: RequestStream, url: str, folder: Path) -> list[str]:
        """Write the generator's input to a folder and return its command.

        Args:
            stream: the requests.
            url: the server's URL without `/v1`.
            folder: for the input.
        """

    @abstractmethod
    def read(self, stream: RequestStream, folder: Path, arrivals: SecondsArray) -> GeneratorResult:
        """Return the generator's records.

        Args:
            stream: the requests.
            folder: of the run.
            arrivals: when requests arrived at the server.

        Raises:
            OSError, ValueError, LookupError: if the result is missing or partial.
        """


class TunerGenerator(LoadGenerator):
    """`python -m tuner.loadgen`. Its records have their own clock; the request with the least delay sets the offset."""

    name = "tuner"
    package = "tuner"
    runs_in_repository = True

    def prepare(self, stream: RequestStream, url: str, folder: Path) -> list[str]:
        """Write the plan with its schedule."""
        if stream.poisson:
            arrivals: Constant | Poisson = Poisson(process="poisson", rate=stream.rate)
        else:
            arrivals = Constant(process="constant", rate=stream.rate)
        lengths = RequestClass(input=Length(fixed=PROMPT_WORDS), output=Length(fixed=stream.output_tokens))
        traffic = Traffic(arrivals=arrivals, requests=stream.requests, classes={"all": lengths})
        plan = RequestPlan(f"{url}/v1/completions", MODEL_NAME, None, None, stream.timeout_s, PLAN_LIMIT_S)
        requests = (
            PlannedRequest(each.index, each.name, each.at_s, _prompt(), PROMPT_WORDS, stream.output_tokens)
            for each in make_schedule(traffic, stream.seed)
        )
        write_plan(folder / "plan.jsonl", plan, requests)
        return [sys.executable, "-m", "tuner.loadgen", str(folder / "plan.jsonl"), str(folder / "result")]

    def read(self, stream: RequestStream, folder: Path, arrivals: SecondsArray) -> GeneratorResult:
        """Read the Parquet file."""
        recorded = read_records(folder / "result.parquet")
        records = [
            GeneratorRecord(
                each.sent_s,
                each.first_token_s,
                0 if each.first_token_s is None else 1 + len(each.gaps_s),
                None if each.completed else f"{each.status}: {each.error}",
            )
            for each in recorded
        ]
        due = np.array([each.due_s for each in recorded], dtype=float)
        offset = least_delay(arrivals, sent_times(records))
        return GeneratorResult(shifted(records, offset), np.sort(due) + offset, schedule_recorded=True)


class VllmGenerator(LoadGenerator):
    """`vllm bench serve`. It draws gaps from NumPy's global stream and scales them to the whole duration.

    It has no time limit for a single request.
    """

    name = "vllm bench serve"
    package = "vllm"
    environment: ClassVar[Mapping[str, str]] = {**OFFLINE, "VLLM_NO_USAGE_STATS": "1"}

    def prepare(self, stream: RequestStream, url: str, folder: Path) -> list[str]:
        """Write a custom dataset."""
        _write_lines(
            folder / "data.jsonl", {"prompt": _prompt(), "output_tokens": stream.output_tokens}, stream.requests
        )
        words = f"bench serve --backend openai --base-url {url} --endpoint /v1/completions --model {MODEL_NAME}"
        words += (
            f" --dataset-name custom --custom-output-len {stream.output_tokens} --skip-chat-template --disable-shuffle"
        )
        words += f" --num-prompts {stream.requests} --request-rate {stream.rate:g} --seed {stream.seed} --ignore-eos"
        words += f" --burstiness {'1' if stream.poisson else 'inf'} --disable-tqdm --save-result --save-detailed"
        words += f" --dataset-path {folder}/data.jsonl --result-dir {folder} --result-filename result.json"
        return [str(self.program), *words.split(), "--tokenizer", str(self.tokenizer)]

    def read(self, stream: RequestStream, folder: Path, arrivals: SecondsArray) -> GeneratorResult:
        """Read the detailed result; an empty error means that the request completed."""
        result = json.loads((folder / "result.json").read_text())
        columns = (result["start_times"], result["ttfts"], result["itls"], result["errors"])
        records = [
            GeneratorRecord(sent, sent + ttft if ttft else None, (1 + len(itls)) if ttft else 0, error or None)
            for sent, ttft, itls, error in zip(*columns, strict=True)
        ]
        gaps = np.full(stream.requests, 1.0 / stream.rate)
        if stream.poisson:
            gaps = np.random.RandomState(stream.seed).gamma(1.0, 1.0 / stream.rate, stream.requests)
        scheduled = np.cumsum(gaps) * (stream.requests / stream.rate / gaps.sum())
        offset = least_delay(sent_times(records), scheduled)
        return GeneratorResult(records, scheduled + offset, schedule_recorded=False)


class AiPerfGenerator(LoadGenerator):
    """AIPerf in its request-rate mode: one process draws the gaps, and its workers send.

    With `HF_HUB_OFFLINE`, it treats a tokenizer's folder as a repository's name and stops.
    """

    name = "AIPerf"
    package = "aiperf"
    environment: ClassVar[Mapping[str, str]] = {}

    def prepare(self, stream: RequestStream, url: str, folder: Path) -> list[str]:
        """Write a dataset of single turns."""
        _write_lines(folder / "data.jsonl", {"text": _prompt(), "output_length": stream.output_tokens}, stream.requests)
        words = f"profile --model {MODEL_NAME} --url {url} --endpoint-type completions --streaming --ui none"
        words += f" --request-rate {stream.rate:g} --arrival-pattern {'poisson' if stream.poisson else 'constant'}"
        words += f" --request-count {stream.requests} --random-seed {stream.seed} --custom-dataset-type single-turn"
        words += " --dataset-sampling-strategy sequential --use-legacy-max-tokens --use-server-token-count"
        words += f" --request-timeout-seconds {stream.timeout_s:g} --no-gpu-telemetry --no-server-metrics"
        words += f" --export-level records --input-file {folder}/data.jsonl --artifact-dir {folder}/result"
        return [str(self.program), *words.split(), "--tokenizer", str(self.tokenizer)]

    def read(self, stream: RequestStream, folder: Path, arrivals: SecondsArray) -> GeneratorResult:
        """Read the records; the schedule is drawn again as `aiperf.timing` draws it."""
        with (folder / "result" / "profile_export.jsonl").open() as file:
            records = shifted([_aiperf_record(json.loads(line)) for line in file], -_unix_offset())
        gaps = [1.0 / stream.rate] * stream.requests
        if stream.poisson:
            digest = hashlib.sha256(f"{stream.seed}:timing.request.poisson_interval".encode()).digest()
            gap_random = random.Random(int.from_bytes(digest[:8], "big"))
            gaps = [gap_random.expovariate(stream.rate) for _ in range(stream.requests)]
        scheduled = np.array(list(accumulate(gaps)))
        offset = least_delay(sent_times(records), scheduled)
        return GeneratorResult(records, scheduled + offset, schedule_recorded=False)


def _aiperf_record(line: Mapping[str, Any]) -> GeneratorRecord:
    """Return the record of one line of AIPerf's export."""
    sent = line["metadata"]["request_start_ns"] / 1e9
    metrics, error = line.get("metrics") or {}, line.get("error")
    ttft = metrics.get("time_to_first_token")
    gaps = metrics.get("inter_chunk_latency", {}).get("value", [])
    return GeneratorRecord(
        sent,
        None if ttft is None else sent + ttft["value"] / 1e3,
        0 if ttft is None else 1 + len(gaps),
        None if error is None else f"{error['type']}: {error['message']}",
    )


class GuideLlmGenerator(LoadGenerator):
    """GuideLLM with its Poisson profile and its default number of workers."""

    name = "GuideLLM"
    package = "guidellm"

    def prepare(self, stream: RequestStream, url: str, folder: Path) -> list[str]:
        """Write a dataset."""
        _write_lines(
            folder / "data.jsonl", {"prompt": _prompt(), "output_tokens_count": stream.output_tokens}, stream.requests
        )
        backend = {"kind": "openai_http", "target": url, "model": MODEL_NAME, "timeout": stream.timeout_s}
        words = f"run --profile kind={'poisson' if stream.poisson else 'constant'},rate={stream.rate:g}"
        words += f" --constraint kind=max_requests,count={stream.requests} --seed kind=static,value={stream.seed}"
        words += f" --data kind=json_file,path={folder}/data.jsonl --output kind=json,path={folder}/result.json"
        words += f" --tokenizer kind=huggingface_auto,model={self.tokenizer} --disable-console-interactive"
        backend_text = json.dumps({**backend, "request_format": "/v1/completions"})
        return [str(self.program), *words.split(), "--backend", backend_text]

    def read(self, stream: RequestStream, folder: Path, arrivals: SecondsArray) -> GeneratorResult:
        """Read the report; a request that was scheduled before the run began has a time near the Unix epoch."""
        groups = json.loads((folder / "result.json").read_text())["benchmarks"][0]["requests"]
        infos = [request["info"] for group in groups.values() for request in group or ()]
        records = [_guidellm_record(info) for info in infos]
        targets = np.array([info["timings"]["targeted_start"] for info in infos], dtype=float)
        in_run = targets[targets > 0]
        scheduled, early = np.sort(in_run) - _unix_offset(), len(targets) - len(in_run)
        return GeneratorResult(shifted(records, -_unix_offset()), scheduled, schedule_recorded=True, early=early)


def _guidellm_record(info: Mapping[str, Any]) -> GeneratorRecord:
    """Return the record of one request in GuideLLM's report."""
    timings = info["timings"]
    first, last = timings["first_token_iteration"], timings["last_token_iteration"]
    return GeneratorRecord(timings["request_start"], first, len({first, last} - {None}), info["error"])


def _prompt() -> str:
    """Return the prompt of every request."""
    return " ".join(["word"] * PROMPT_WORDS)


def _write_lines(path: Path, line: Mapping[str, object], count: int) -> None:
    """Write a JSON line `count` times."""
    path.write_text((json.dumps(line) + "\n") * count)


def _unix_offset() -> float:
    """Return Unix time minus CLOCK_MONOTONIC, in seconds."""
    return time.time() - time.monotonic()
