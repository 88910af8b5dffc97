"""The load of a trial: what users send, and how the benchmark is told to send it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tuner.workloads.suite import Suite
from tuner.workloads.traffic import Traffic

MIN_REQUESTS_PER_USER = 2
MIN_PROMPTS = 100
"""What a shorter load keeps: every user's second request, or the burst at the start would be most of it, and enough
requests for a 99th percentile to mean something."""


class ClosedLoop(BaseModel):
    """A closed loop of `max_concurrency` users sending `num_prompts` random prompts of fixed lengths.

    Lengths are tokens. `temperature` None sends none and leaves the server's own default (1.0 in vLLM, or the
    model's generation_config); a value is set on the server, not by the client, so that the load's command stays the
    published one. `seed` is the first repeat's seed: repeat i uses seed + i, the warm-up a seed of its own, because
    the same prompts twice on one server would hit its prefix cache.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_concurrency: int = Field(50, ge=1)
    num_prompts: int = Field(200, ge=1)
    input_len: int = Field(512, ge=1)
    output_len: int = Field(512, ge=1)
    temperature: float | None = Field(None, ge=0)
    percentiles: tuple[int, ...] = (50, 90, 95, 99)
    warmup_prompts: int | None = Field(None, ge=0, description="default: one for each user")
    warmup_output_len: int = Field(32, ge=1)
    seed: int = Field(1000, ge=0)

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return self.input_len + self.output_len

    def repeat_seed(self, index: int) -> int:
        """Return the client's seed for repeat `index` (0-based)."""
        return self.seed + index

    @property
    def warmup_seed(self) -> int:
        """The warm-up's seed, never one of a repeat's."""
        return self.seed + 500_000

    def shortened(self, share: float) -> ClosedLoop:
        """Return the load with that share of its requests; at least `MIN_REQUESTS_PER_USER` a user and `MIN_PROMPTS`.

        In a closed loop nothing else changes: as many users are there all the time. Traffic at a rate cannot be
        shortened, because a load that is over before the server's queue has grown would flatter it.
        """
        least = max(MIN_REQUESTS_PER_USER * self.max_concurrency, MIN_PROMPTS, math.ceil(share * self.num_prompts))
        return self.model_copy(update={"num_prompts": min(self.num_prompts, least)})

    def warmup(self) -> ClosedLoop | None:
        """Return the unscored warm-up load: one short request a user, of another seed; None if none is wanted."""
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


SingleWorkload = ClosedLoop | Traffic
"""What a server is sent at once: the published closed loop, by `vllm bench serve`, or traffic, by `tuner.loadgen`."""

Workload = SingleWorkload | Suite
"""What a trial measures: one load, or several one after another."""


def read_workload(data: Mapping[str, Any]) -> Workload:
    """Return the workload that `model_dump` wrote."""
    if "loads" in data:
        return Suite.model_validate(data)
    return Traffic.model_validate(data) if "classes" in data else ClosedLoop.model_validate(data)
