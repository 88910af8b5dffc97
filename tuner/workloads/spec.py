"""The workloads of a trial: the closed loop of `vllm bench serve`, traffic, or a suite of several workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tuner.workloads.arrivals import Closed
from tuner.workloads.request_class import RequestClass
from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

MIN_REQUESTS_PER_USER = 2
MIN_PROMPTS = 100
"""Limits of a shortened workload: each user sends at least two requests, so that the burst at the start is not most of
the run, and a 99th percentile has enough requests."""


class ClosedLoop(BaseModel):
    """A closed loop of `max_concurrency` users sending `num_prompts` random prompts of fixed lengths.

    Lengths are in tokens. With `temperature` None, the server's default applies (1.0 in vLLM, or the model's
    `generation_config.json`). A value is set on the server and not sent by the client, so that the client's command
    equals the published one. Repeat i uses `seed` + i. The warm-up uses another seed, because the same prompts again
    would hit the server's prefix cache.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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

    def repeat_seed(self, index: int) -> int:
        """Return the client's seed for repeat `index` (0-based)."""
        return self.seed + index

    @property
    def warmup_seed(self) -> int:
        """The warm-up's seed, which no repeat uses."""
        return self.seed + 500_000

    def shortened(self, share: float) -> ClosedLoop:
        """Return the workload with a share of its requests, at least `MIN_REQUESTS_PER_USER` a user and `MIN_PROMPTS`.

        The number of concurrent users does not change. Traffic at a rate has no shorter form: it would end before an
        overloaded server's queue has grown, and its results would be too good.
        """
        least = max(MIN_REQUESTS_PER_USER * self.max_concurrency, MIN_PROMPTS, math.ceil(share * self.num_prompts))
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


CLOSED_LOOP_CLASS = "all"
"""The request class of a closed loop that is sent as traffic."""

CLOSED_LOOP_TIMEOUT_S = 1800.0
"""A request of a closed loop is given up after this time; `vllm bench serve` has no shorter limit."""


def as_traffic(workload: ClosedLoop) -> Traffic:
    """Return a closed loop as traffic of one class, for engines whose load the project's own generator sends.

    The latencies of traffic are those of its stable middle, in which every user has a request in flight; see
    `tuner.workloads.results.requests.stable_middle`. `vllm bench serve` counts all requests.
    """
    lengths = RequestClass.model_validate({"input": workload.input_len, "output": workload.output_len})
    return Traffic(
        arrivals=Closed(users=workload.max_concurrency),
        requests=workload.num_prompts,
        classes={CLOSED_LOOP_CLASS: lengths},
        timeout_s=CLOSED_LOOP_TIMEOUT_S,
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
