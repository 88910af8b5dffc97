"""The traffic that `best_serve.sh --verify` sends, and the files that the script carries for it.

The script carries its workload as YAML text. The files that the workload reads (prompts, lengths, arrival times) travel
compressed. A file that is too large for a script, that has changed since the study or is gone, does not travel: the
script then needs it at its path, with the content that the study read.

A trial that searched the capacity was measured at rates that differ by repeat. It is verified at the lower end of the
capacity's interval, where every SLO must hold; its other metrics have nothing to be compared with.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from records.metrics import metric
from records.trials import TrialOutcome
from search_spaces.schema import VLLM
from search_spaces.yaml_file import read_regular_file, yaml_text
from tuner.engines.kind import Feature
from tuner.engines.kinds import kind_of
from tuner.engines.vllm.bench_serve import bench_arguments
from tuner.export.quoting import (
    PORT_PLACEHOLDER,
    RESULTS_PLACEHOLDER,
    SEED_PLACEHOLDER,
    TRAFFIC_PLACEHOLDER,
    VLLM_PLACEHOLDER,
)
from tuner.export.references import Reference
from tuner.specs import Limits, ModelRef
from tuner.workloads.spec import ClosedLoop, Suite, Workload, as_traffic
from tuner.workloads.traffic import Traffic, with_files

CARRIED_LIMIT = 2**20
"""The most bytes of all compressed files together that a script carries."""

COMPRESSED_LIMIT = 2**24
"""A file of more bytes is not compressed: it would not become small enough, and takes seconds."""

SINGLE_NAME = "traffic"
"""Stem of the file of a workload without a name."""


@dataclass(frozen=True)
class CarriedTraffic:
    """The traffic that a script carries.

    Attributes:
        workloads: file names to YAML texts, in the order in which the workloads are sent. Paths in them are relative to
            the folder of these files, or absolute for `needed`.
        files: file names to the gzip-compressed content of the files that the workloads read.
        sources: file names of `files` to the paths that they had in the study.
        needed: absolute paths to SHA-256 digests of files that do not travel.
    """

    workloads: Mapping[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    needed: Mapping[str, str] = field(default_factory=dict)


def carry_traffic(workload: Traffic | Suite, digests: Mapping[str, str]) -> CarriedTraffic:
    """Return the files of a workload.

    Args:
        workload: the workload.
        digests: path to the SHA-256 digest of each file that the study read.
    """
    names: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for path, digest in digests.items():
        content = _content(Path(path), digest)
        if content is None or sum(map(len, files.values())) + len(content) > CARRIED_LIMIT:
            continue
        # the form of a file of prompts depends on its suffix
        names[path] = f"file-{len(names)}" + (".json" if Path(path).suffix == ".json" else ".txt")
        files[names[path]] = content
    loads = workload.loads if isinstance(workload, Suite) else {SINGLE_NAME: workload}
    temperature = {"temperature": workload.temperature}
    return CarriedTraffic(
        workloads={
            f"{name}.yaml": yaml_text(_plain(load.model_copy(update=temperature), names))
            for name, load in loads.items()
        },
        files=files,
        sources={name: path for path, name in names.items()},
        needed={path: digest for path, digest in digests.items() if path not in names},
    )


def _content(path: Path, digest: str) -> bytes | None:
    """Return a file's compressed content; None if it is gone, is large, or is not what the study read."""
    try:
        content = read_regular_file(path, COMPRESSED_LIMIT)
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest() != digest:
        return None
    return gzip.compress(content, mtime=0)


def _plain(load: Traffic, names: Mapping[str, str]) -> Any:
    """Return a workload as plain JSON with the new names of its files."""
    return with_files(load.model_dump(mode="json", exclude_none=True), lambda file: names.get(file, file))


VERIFY_SEED = 900_000
"""Added to the study's seed, so that a verification sends prompts that no trial and no warm-up sent."""

SLOWER = 3
"""A verification may take this many times as long as the longest benchmark of the trial, at least a study's limit."""

UNMEASURED = ("quality", "capacity")
"""Metrics that no verification measures, whatever their prefix."""


@dataclass(frozen=True)
class Verification:
    """What a verification sends and compares.

    Attributes:
        reference: metric names to what the measurements are compared with.
        repeats: benchmarks; medians over them are compared.
        first_seed: seed of the first benchmark. The study used neither it nor those of the next ones.
        bench_argv: arguments of `vllm` that run the benchmark (`bench serve …`); empty for traffic.
        warmup_argv: arguments of `vllm` that run the warm-up; empty without a warm-up of its own.
        load_argv: arguments of `tuner` that send the traffic.
        traffic: the traffic; None for a closed loop.
        limit_s: time limit of one run of the traffic in seconds; None for a closed loop.
        tokenizers: of the traffic, the server's first; prompts have the tokens that all share.
        new_connections: whether each request of the traffic has a connection of its own.
        unverified: lines about what is not measured.
    """

    reference: Mapping[str, Reference] = field(default_factory=dict)
    repeats: int = 1
    first_seed: int = 0
    bench_argv: tuple[str, ...] = ()
    warmup_argv: tuple[str, ...] = ()
    load_argv: tuple[str, ...] = ()
    traffic: CarriedTraffic | None = None
    limit_s: float | None = None
    tokenizers: tuple[str, ...] = ()
    new_connections: bool = False
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the names of the metrics.

        Raises:
            KeyError: if `reference` has an unknown one.
        """
        for name in self.reference:
            metric(name)


def verification(
    model: ModelRef,
    workload: Workload,
    recorded: Mapping[str, Reference],
    outcomes: Sequence[TrialOutcome],
    files: Mapping[str, str],
    capacity: bool,
    engine: str = VLLM,
    *,
    tokenizers: Sequence[str] = (),
) -> Verification:
    """Return the verification of a trial.

    Args:
        model: the model as clients name it.
        workload: the workload that the trial was measured with.
        recorded: the recorded metrics of the trial.
        outcomes: its measurements. As many benchmarks are run as most of one server had.
        files: path to the SHA-256 digest of each file that the workload reads.
        capacity: whether the trial searched the capacity.
        engine: the trial's; a closed loop of another engine than vLLM is sent as traffic.
        tokenizers: of all engines, if the study has several: the load generator sent every workload to each of them,
            over new connections.
    """
    made = Verification(
        reference={name: each for name, each in recorded.items() if name.rpartition(".")[2] not in UNMEASURED},
        repeats=max([1, *(len(outcome.repeats) for outcome in outcomes)]),
        first_seed=workload.seed + VERIFY_SEED,
    )
    sent: Traffic | Suite
    if isinstance(workload, ClosedLoop) and (tokenizers or not kind_of(engine).can(Feature.OWN_CLIENT)):
        sent = as_traffic(workload)
    elif isinstance(workload, ClosedLoop):
        return replace(made, bench_argv=_bench(model, workload), warmup_argv=_bench_warmup(model, workload))
    else:
        sent = workload
    if capacity:
        made, found = replace(made, reference={}), recorded.get("capacity")
        if isinstance(workload, Traffic) and found is not None and found.low > 0:
            sent = workload.at_rate_for_same_duration(found.low)
            made = replace(made, unverified=(_capacity_line(found),))
    traffic = carry_traffic(sent, files)
    made = replace(
        made,
        traffic=traffic,
        limit_s=_limit_s(outcomes),
        tokenizers=(model.tokenizer, *(each for each in tokenizers if each != model.tokenizer)),
        new_connections=bool(tokenizers) or kind_of(engine).program is None,
    )
    return replace(made, load_argv=_load(model.served_name, made, traffic, engine))


def _capacity_line(found: Reference) -> str:
    interval = f"[{found.low:.4g}, {found.high:.4g}]"
    return f"capacity: recorded {found.value:.4g} {interval} req/s; sent: {found.low:.4g}, where every SLO must hold"


def _bench(model: ModelRef, workload: ClosedLoop) -> tuple[str, ...]:
    words = list(_bench_words(model, workload))
    words[words.index("--seed") + 1] = SEED_PLACEHOLDER
    return tuple(words)


def _bench_warmup(model: ModelRef, workload: ClosedLoop) -> tuple[str, ...]:
    warm = workload.model_copy(update={"seed": workload.seed + VERIFY_SEED}).warmup()
    return () if warm is None else _bench_words(model, warm)


def _bench_words(model: ModelRef, workload: ClosedLoop) -> tuple[str, ...]:
    url = f"http://127.0.0.1:{PORT_PLACEHOLDER}/v1"
    named = replace(model, name=model.served_name)
    return tuple(bench_arguments(named, workload, url, workload.seed, RESULTS_PLACEHOLDER, "result.json"))


def _load(model: str, made: Verification, traffic: CarriedTraffic, engine: str) -> tuple[str, ...]:
    """Return the arguments of `tuner`; the workloads of a suite are named by their files."""
    files = [f"{TRAFFIC_PLACEHOLDER}/{name}" for name in traffic.workloads]
    prompts = ("--vllm", VLLM_PLACEHOLDER) if kind_of(engine).can(Feature.OWN_CLIENT) else ()
    return (
        *("server", "load", "--json", "--url", f"http://127.0.0.1:{PORT_PLACEHOLDER}", "--model", model),
        *(word for file in files for word in ("--workload", file)),
        *("--seed", SEED_PLACEHOLDER, *(word for each in made.tokenizers for word in ("--tokenizer", each)), *prompts),
        *(("--new-connections",) if made.new_connections else ()),
        *("--timeout", f"{made.limit_s:.0f}s", "--output", RESULTS_PLACEHOLDER),
    )


def _limit_s(outcomes: Sequence[TrialOutcome]) -> float:
    """Return the time limit of one run of the traffic in seconds."""
    durations = [repeat.duration_s for outcome in outcomes for repeat in outcome.repeats if repeat.duration_s]
    return max([Limits.benchmark_s, *(SLOWER * duration for duration in durations)])
