"""The workloads of a trial: the closed loop of `vllm bench serve`, traffic, or a suite of several of them.

The workloads of a suite are traffic whose classes have the workload's name as a prefix: class `docs` of workload `day`
is `day.docs` in records, metrics and SLOs. Metrics are not averaged over workloads, because throughputs at different
rates have no meaningful mean. Only shares of requests (`success_rate`, `goodput_share`) and the worst class exist over
all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from records.trials import Repeat
from tuner.workloads.reading import Strict
from tuner.workloads.request_class import ClassSlo, RequestClass
from tuner.workloads.run_metrics import MetricValues, worst_value
from tuner.workloads.traffic import RESERVED_PREFIXES, Closed, Traffic, check_name

POOLED_METRICS = ("success_rate", "goodput_share")
"""Metrics of a whole suite: shares of all offered requests."""


class Suite(Strict):
    """Named workloads. `temperature` and `seed` are as in `ClosedLoop` and hold for every workload of the suite."""

    loads: dict[str, Traffic] = Field(min_length=2)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    seed: int = Field(1000, ge=0)

    @field_validator("loads")
    @classmethod
    def _has_names(cls, loads: dict[str, Traffic]) -> dict[str, Traffic]:
        for name in loads:
            check_name(name, "workload")
        return loads

    def parts(self) -> dict[str, Traffic]:
        """Return the workloads in the order in which they are sent, with prefixed class names."""
        return {name: self._prefixed(name, traffic) for name, traffic in self.loads.items()}

    def _prefixed(self, name: str, traffic: Traffic) -> Traffic:
        changes = {
            "classes": {f"{name}.{each}": request_class for each, request_class in traffic.classes.items()},
            "slo": {f"{name}.{each}": bounds for each, bounds in traffic.slo.items()},
            "temperature": self.temperature,
            "seed": self.seed,
        }
        return traffic.model_copy(update=changes)

    @property
    def sent_classes(self) -> list[str]:
        """The classes with requests, as `WORKLOAD.CLASS`."""
        return [name for part in self.parts().values() for name in part.sent_classes]

    @property
    def slos(self) -> dict[str, ClassSlo]:
        """The SLO of each class that has one, by `WORKLOAD.CLASS`."""
        return {name: slo for part in self.parts().values() for name, slo in part.slos.items()}

    @property
    def metric_prefixes(self) -> list[str]:
        """The prefixes that a metric's name may have."""
        names = [*self.loads, *(f"{name}.{each}" for name in self.loads for each in RESERVED_PREFIXES)]
        return [*names, *self.sent_classes, "worst"]

    @property
    def longest_workload(self) -> Traffic:
        """The workload with the longest request."""
        return max(self.parts().values(), key=lambda traffic: traffic.longest_request)

    @property
    def priorities(self) -> bool:
        """Whether requests of a workload have different priorities."""
        return any(traffic.priorities for traffic in self.loads.values())

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request of any workload."""
        return self.longest_workload.longest_request

    @property
    def output_len(self) -> int:
        """Tokens of the longest answer of any workload."""
        return max(traffic.output_len for traffic in self.loads.values())

    @property
    def input_len(self) -> int:
        """Tokens of the longest request less those of the longest answer."""
        return max(1, self.longest_request - self.output_len)

    @property
    def max_concurrency(self) -> int | None:
        """Requests in flight at most, over all workloads; None if one of them has no limit."""
        limits = [traffic.max_concurrency for traffic in self.loads.values()]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def files(self) -> list[Path]:
        """Return every file that the workloads read."""
        return [file for traffic in self.loads.values() for file in traffic.files()]

    def run_index(self, repeat: int, part: int) -> int:
        """Return the index of workload `part` in repeat `repeat`, which gives each run a seed and files of its own."""
        return repeat * len(self.loads) + part


def merge_repeats(index: int, repeats: Sequence[tuple[str, Repeat]]) -> Repeat:
    """Return repeat `index` of a suite from the repeats of its workloads.

    Metrics of a workload become `WORKLOAD.name`, those of its classes `WORKLOAD.CLASS.name`.
    """
    metrics: MetricValues = {}
    for name, repeat in repeats:
        for key, value in repeat.metrics.items():
            metrics[key if key.startswith(f"{name}.") else f"{name}.{key}"] = value
    parts = [repeat for _, repeat in repeats]
    offered = sum(repeat.offered for repeat in parts)
    completed = sum(repeat.completed for repeat in parts)
    durations = [repeat.duration_s for repeat in parts]
    good = [count for repeat in parts if (count := _good_requests(repeat)) is not None]
    metrics["success_rate"] = completed / offered if offered else None
    metrics["goodput_share"] = sum(good) / offered if offered and len(good) == len(parts) else None
    worst = [{key[6:]: value for key, value in each.metrics.items() if key.startswith("worst.")} for each in parts]
    metrics |= {f"worst.{key}": worst_value(key, worst) for key in worst[0]}
    return Repeat(
        index=index,
        seed=parts[0].seed,
        offered=offered,
        completed=completed,
        failed=offered - completed,
        duration_s=None if None in durations else sum(each for each in durations if each is not None),
        metrics=metrics,
    )


def _good_requests(repeat: Repeat) -> float | None:
    share = repeat.metrics.get("goodput_share")
    return None if share is None else share * repeat.offered


_MIN_REQUESTS_PER_USER = 2
_MIN_PROMPTS = 100
"""Limits of a shortened workload: each user sends at least two requests, so that the burst at the start is not most of
the run, and a 99th percentile has enough requests."""


class ClosedLoop(Strict):
    """A closed loop of `max_concurrency` users sending `num_prompts` random prompts of fixed lengths.

    Lengths are in tokens. With `temperature` None, the server's default applies (1.0 in vLLM, or the model's
    `generation_config.json`). A value is set on the server and not sent by the client, so that the client's command
    equals the published one. Repeat i uses `seed` + i. The warm-up uses another seed, because the same prompts again
    would hit the server's prefix cache.
    """

    max_concurrency: int = Field(50, ge=1)
    num_prompts: int = Field(200, ge=1)
    input_len: int = Field(512, ge=1)
    output_len: int = Field(512, ge=1)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    percentiles: tuple[int, ...] = (50, 90, 95, 99)
    warmup_prompts: int | None = Field(None, ge=0, description="default: one for each user")
    warmup_output_len: int = Field(32, ge=1)
    seed: int = Field(1000, ge=0)

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return self.input_len + self.output_len

    @property
    def priorities(self) -> bool:
        """False: all requests are alike."""
        return False

    @property
    def slos(self) -> dict[str, ClassSlo]:
        """Empty: it has no classes."""
        return {}

    def repeat_seed(self, index: int) -> int:
        """Return the client's seed for repeat `index` (0-based)."""
        return self.seed + index

    @property
    def warmup_seed(self) -> int:
        """The warm-up's seed, which no repeat uses."""
        return self.seed + 500_000

    def shortened(self, share: float) -> ClosedLoop:
        """Return the workload with a share of its requests, at least two a user and `_MIN_PROMPTS`.

        The number of concurrent users does not change. Traffic at a rate has no shorter form: it would end before an
        overloaded server's queue has grown, and its results would be too good.
        """
        least = max(_MIN_REQUESTS_PER_USER * self.max_concurrency, _MIN_PROMPTS, math.ceil(share * self.num_prompts))
        return self.model_copy(update={"num_prompts": min(self.num_prompts, least)})

    def warmup(self) -> ClosedLoop | None:
        """Return the unscored warm-up: one short request per user, with another seed; None if `warmup_prompts` is 0."""
        prompts = self.max_concurrency if self.warmup_prompts is None else self.warmup_prompts
        if prompts == 0:
            return None
        return self.model_copy(
            update={
                "num_prompts": prompts,
                "output_len": min(self.warmup_output_len, self.output_len),
                "seed": self.warmup_seed,
            }
        )


_CLOSED_LOOP_CLASS = "all"
"""The request class of a closed loop that is sent as traffic."""

_CLOSED_LOOP_TIMEOUT_S = 1800.0
"""A request of a closed loop is given up after this time; `vllm bench serve` has no shorter limit."""


def as_traffic(workload: ClosedLoop) -> Traffic:
    """Return a closed loop as traffic of one class, for engines whose load the project's own generator sends.

    The latencies of traffic are those of its stable middle, in which every user has a request in flight; see
    `tuner.workloads.results.stable_middle`. `vllm bench serve` counts all requests.
    """
    lengths = RequestClass.model_validate({"input": workload.input_len, "output": workload.output_len})
    return Traffic(
        arrivals=Closed(users=workload.max_concurrency),
        requests=workload.num_prompts,
        classes={_CLOSED_LOOP_CLASS: lengths},
        timeout_s=_CLOSED_LOOP_TIMEOUT_S,
        temperature=workload.temperature,
        seed=workload.seed,
        warmup_requests=workload.max_concurrency if workload.warmup_prompts is None else workload.warmup_prompts,
    )


SingleWorkload = ClosedLoop | Traffic
"""The workload of one benchmark: a closed loop (by `vllm bench serve`) or traffic (by `tuner.loadgen`)."""

Workload = SingleWorkload | Suite
"""The workload of a trial: one workload, or a suite of several, one after another."""


def read_workload(data: Mapping[str, Any]) -> Workload:
    """Return the workload of a dictionary that `model_dump` returned."""
    if "loads" in data:
        return Suite.model_validate(data)
    return Traffic.model_validate(data) if "classes" in data else ClosedLoop.model_validate(data)
