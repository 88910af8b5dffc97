"""The load generators that `loadgen.py` compares: how each is started, and what it leaves."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.loadgen.figures import Reading, Record, Times, promptest, sent_times, shifted
from tuner.loadgen.plan import LoadPlan, PlannedRequest, write_plan
from tuner.loadgen.result import read_records
from tuner.workloads.arrivals import Constant, Poisson
from tuner.workloads.lengths import Length
from tuner.workloads.schedule import make_schedule
from tuner.workloads.traffic import RequestClass, Traffic

MODEL = "fake"
WORDS = 32
ROOT = Path(__file__).resolve().parents[2]
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True)
class Load:
    """What is sent: so many requests at a rate, at Poisson times or evenly, and after how long one is given up."""

    requests: int
    rate: float
    poisson: bool
    tokens: int
    timeout_s: float
    seed: int = 0


class Candidate(ABC):
    """One load generator."""

    name: ClassVar[str]
    package: ClassVar[str]
    environment: ClassVar[Mapping[str, str]] = OFFLINE

    def __init__(self, program: Path, tokenizer: Path) -> None:
        self.program = program
        self.tokenizer = tokenizer

    def version(self) -> str:
        """Return the installed version."""
        ask = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        words = [str(self.program.with_name("python")), "-c", ask]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    @abstractmethod
    def prepare(self, load: Load, url: str, folder: Path) -> list[str]:
        """Write the generator's input into `folder` and return its command line; `url` is the server's, without /v1."""

    @abstractmethod
    def read(self, load: Load, folder: Path, arrivals: Times) -> Reading:
        """Return what it left in `folder`; `arrivals` are those of the server's log.

        Raises:
            OSError, ValueError, LookupError: if it left nothing, or less than a whole result.
        """


class Ours(Candidate):
    """`python -m tuner.loadgen`. Its records have a clock of their own, which is set by the promptest request."""

    name = "tuner"
    package = "tuner"

    def prepare(self, load: Load, url: str, folder: Path) -> list[str]:
        """Draw the schedule and write the plan."""
        even, chance = Constant(process="constant", rate=load.rate), Poisson(process="poisson", rate=load.rate)
        lengths = RequestClass(input=Length(fixed=WORDS), output=Length(fixed=load.tokens))
        traffic = Traffic(arrivals=chance if load.poisson else even, requests=load.requests, classes={"all": lengths})
        offered = make_schedule(traffic, load.seed)
        plan = LoadPlan(f"{url}/v1/completions", MODEL, None, None, load.timeout_s, 3600.0)
        requests = (PlannedRequest(each.index, each.name, each.at_s, prompt(), WORDS, load.tokens) for each in offered)
        write_plan(folder / "plan.jsonl", plan, requests)
        return [sys.executable, "-m", "tuner.loadgen", str(folder / "plan.jsonl"), str(folder / "result")]

    def read(self, load: Load, folder: Path, arrivals: Times) -> Reading:
        """Read the Parquet file."""
        found = read_records(folder / "result.parquet")
        records = [
            Record(
                each.sent_s,
                each.first_token_s,
                0 if each.first_token_s is None else 1 + len(each.gaps_s),
                None if each.completed else f"{each.status}: {each.error}",
            )
            for each in found
        ]
        due = np.array([each.due_s for each in found], dtype=float)
        zero = promptest(arrivals, sent_times(records))
        return Reading(shifted(records, zero), np.sort(due) + zero, told=True)


class Vllm(Candidate):
    """`vllm bench serve`: its gaps are drawn from NumPy's global stream and stretched to the whole duration.

    It has no limit for a single request.
    """

    name = "vllm bench serve"
    package = "vllm"
    environment: ClassVar[Mapping[str, str]] = {**OFFLINE, "VLLM_NO_USAGE_STATS": "1"}

    def prepare(self, load: Load, url: str, folder: Path) -> list[str]:
        """Write the custom dataset."""
        lines(folder / "data.jsonl", {"prompt": prompt(), "output_tokens": load.tokens}, load.requests)
        words = f"bench serve --backend openai --base-url {url} --endpoint /v1/completions --model {MODEL}"
        words += f" --dataset-name custom --custom-output-len {load.tokens} --skip-chat-template --disable-shuffle"
        words += f" --num-prompts {load.requests} --request-rate {load.rate:g} --seed {load.seed} --ignore-eos"
        words += f" --burstiness {'1' if load.poisson else 'inf'} --disable-tqdm --save-result --save-detailed"
        words += f" --dataset-path {folder}/data.jsonl --result-dir {folder} --result-filename result.json"
        return [str(self.program), *words.split(), "--tokenizer", str(self.tokenizer)]

    def read(self, load: Load, folder: Path, arrivals: Times) -> Reading:
        """Read the detailed result; an empty error is a success."""
        found = json.loads((folder / "result.json").read_text())
        parts = (found["start_times"], found["ttfts"], found["itls"], found["errors"])
        records = [
            Record(sent, sent + first if first else None, (1 + len(gaps)) if first else 0, error or None)
            for sent, first, gaps, error in zip(*parts, strict=True)
        ]
        gaps = np.full(load.requests, 1.0 / load.rate)
        if load.poisson:
            gaps = np.random.RandomState(load.seed).gamma(1.0, 1.0 / load.rate, load.requests)
        scheduled = np.cumsum(gaps) * (load.requests / load.rate / gaps.sum())
        return Reading(records, scheduled + promptest(sent_times(records), scheduled), told=False)


class AiPerf(Candidate):
    """AIPerf in its request-rate mode: one process draws the gaps, its workers send.

    With `HF_HUB_OFFLINE` it takes a tokenizer folder for a repository's name and stops.
    """

    name = "AIPerf"
    package = "aiperf"
    environment: ClassVar[Mapping[str, str]] = {}

    def prepare(self, load: Load, url: str, folder: Path) -> list[str]:
        """Write the dataset of single turns."""
        lines(folder / "data.jsonl", {"text": prompt(), "output_length": load.tokens}, load.requests)
        words = f"profile --model {MODEL} --url {url} --endpoint-type completions --streaming --ui none"
        words += f" --request-rate {load.rate:g} --arrival-pattern {'poisson' if load.poisson else 'constant'}"
        words += f" --request-count {load.requests} --random-seed {load.seed} --custom-dataset-type single-turn"
        words += " --dataset-sampling-strategy sequential --use-legacy-max-tokens --use-server-token-count"
        words += f" --request-timeout-seconds {load.timeout_s:g} --no-gpu-telemetry --no-server-metrics"
        words += f" --export-level records --input-file {folder}/data.jsonl --artifact-dir {folder}/result"
        return [str(self.program), *words.split(), "--tokenizer", str(self.tokenizer)]

    def read(self, load: Load, folder: Path, arrivals: Times) -> Reading:
        """Read the records; the schedule is made again as `aiperf.timing` draws it."""
        with (folder / "result" / "profile_export.jsonl").open() as file:
            records = shifted([aiperf_record(json.loads(line)) for line in file], -unix_offset())
        gaps = [1.0 / load.rate] * load.requests
        if load.poisson:
            digest = hashlib.sha256(f"{load.seed}:timing.request.poisson_interval".encode()).digest()
            stream = random.Random(int.from_bytes(digest[:8], "big"))
            gaps = [stream.expovariate(load.rate) for _ in range(load.requests)]
        scheduled = np.array(list(accumulate(gaps)))
        return Reading(records, scheduled + promptest(sent_times(records), scheduled), told=False)


def aiperf_record(line: Mapping[str, Any]) -> Record:
    """Return one line of AIPerf's export."""
    sent = line["metadata"]["request_start_ns"] / 1e9
    metrics, error = line.get("metrics") or {}, line.get("error")
    first = metrics.get("time_to_first_token")
    gaps = metrics.get("inter_chunk_latency", {}).get("value", [])
    return Record(
        sent,
        None if first is None else sent + first["value"] / 1e3,
        0 if first is None else 1 + len(gaps),
        None if error is None else f"{error['type']}: {error['message']}",
    )


class GuideLlm(Candidate):
    """GuideLLM with its poisson profile and as many workers as it starts by itself."""

    name = "GuideLLM"
    package = "guidellm"

    def prepare(self, load: Load, url: str, folder: Path) -> list[str]:
        """Write the dataset."""
        lines(folder / "data.jsonl", {"prompt": prompt(), "output_tokens_count": load.tokens}, load.requests)
        backend = {"kind": "openai_http", "target": url, "model": MODEL, "timeout": load.timeout_s}
        words = f"run --profile kind={'poisson' if load.poisson else 'constant'},rate={load.rate:g}"
        words += f" --constraint kind=max_requests,count={load.requests} --seed kind=static,value={load.seed}"
        words += f" --data kind=json_file,path={folder}/data.jsonl --output kind=json,path={folder}/result.json"
        words += f" --tokenizer kind=huggingface_auto,model={self.tokenizer} --disable-console-interactive"
        asked = json.dumps({**backend, "request_format": "/v1/completions"})
        return [str(self.program), *words.split(), "--backend", asked]

    def read(self, load: Load, folder: Path, arrivals: Times) -> Reading:
        """Read the report; what was drawn before the load had a beginning has a time near the Unix epoch."""
        groups = json.loads((folder / "result.json").read_text())["benchmarks"][0]["requests"]
        found = [each["info"] for group in groups.values() for each in group or ()]
        records = [
            Record(
                times["request_start"],
                times["first_token_iteration"],
                len({times["first_token_iteration"], times["last_token_iteration"]} - {None}),
                info["error"],
            )
            for info in found
            for times in (info["timings"],)
        ]
        targets = np.array([info["timings"]["targeted_start"] for info in found], dtype=float)
        known = targets[targets > 0]
        scheduled, early = np.sort(known) - unix_offset(), len(targets) - len(known)
        return Reading(shifted(records, -unix_offset()), scheduled, told=True, early=early)


def prompt() -> str:
    """Return the prompt of every request."""
    return " ".join(["word"] * WORDS)


def lines(path: Path, line: Mapping[str, object], count: int) -> None:
    """Write the same JSON line so many times."""
    path.write_text((json.dumps(line) + "\n") * count)


def unix_offset() -> float:
    """Return Unix time less CLOCK_MONOTONIC, in seconds."""
    return time.time() - time.monotonic()
