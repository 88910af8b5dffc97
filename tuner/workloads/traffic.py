"""Traffic: an open loop of requests of several classes, with their arrivals, lengths, prompts and SLOs.

A traffic file is YAML and is given as `--workload FILE` (`docs/workloads.md`):

    arrivals: {process: poisson, rate: 32}
    requests: 2000
    max_in_flight: 128
    system_prompt: 256
    classes:
      chat: {weight: 3, input: {lognormal: {mean: 365, cv: 0.4, max: 2048}}, output: 128}
      documents: {input: 64, output: {uniform: [32, 512]}, prefix: {tokens: 2000, documents: 50, zipf: 1.1}}
      own: {text: {file: prompts.jsonl}}
      never: {weight: 0, input: 90000, output: 1}
    slo:
      chat: {p95_ttft_ms: 2000, tpot_ms: 50}
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tuner.errors import UserError
from tuner.workloads.arrivals import Arrivals, Closed, Constant, Gamma, Poisson, Ramp, TraceArrivals
from tuner.workloads.class_slo import ClassSlo, read_class_slo
from tuner.workloads.reading.files import LARGEST_LENGTH, MAX_REQUESTS, read_model
from tuner.workloads.request_class import RequestClass, TextFile


class Traffic(BaseModel):
    """Traffic. It ends after `requests`, after `duration_s`, or with its trace, whichever comes first.

    Attributes:
        arrivals: the arrival process.
        requests: number of requests.
        duration_s: seconds in which requests are due.
        max_in_flight: requests in flight at most. A request that is due at the limit waits; its latency counts from the
            scheduled time.
        system_prompt: tokens that every prompt begins with, before a class's own prefix.
        timeout_s: seconds after the scheduled time at which a request is given up.
        classes: the request classes by name.
        slo: the bounds of each class that has an SLO; see `tuner.workloads.class_slo`.
        temperature: as in `ClosedLoop`.
        warmup_requests: requests of the warm-up.
        seed: repeat i uses seed + i; the warm-up uses another one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arrivals: Arrivals
    requests: int | None = Field(None, ge=1, le=MAX_REQUESTS)
    duration_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    max_in_flight: int | None = Field(None, ge=1)
    system_prompt: int = Field(0, ge=0, le=LARGEST_LENGTH)
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    classes: dict[str, RequestClass] = Field(min_length=1)
    slo: dict[str, dict[str, float]] = Field(default_factory=dict)
    temperature: float | None = Field(None, ge=0, allow_inf_nan=False)
    warmup_requests: int = Field(16, ge=0, le=MAX_REQUESTS)
    seed: int = Field(1000, ge=0)

    @field_validator("classes")
    @classmethod
    def _has_names(cls, classes: dict[str, RequestClass]) -> dict[str, RequestClass]:
        for name in classes:
            check_name(name, "class")
        return classes

    @model_validator(mode="after")
    def _has_an_end(self) -> Traffic:
        if isinstance(self.arrivals, Closed):
            if self.requests is None:
                raise ValueError("a closed loop needs `requests`: the number of requests of all users together")
            if self.duration_s is not None or self.max_in_flight is not None:
                raise ValueError("a closed loop has `requests` and `users`; leave duration_s and max_in_flight out")
        elif isinstance(self.arrivals, Ramp):
            if self.duration_s is None:
                raise ValueError("a ramp needs `duration_s`: the time from start_rate to end_rate")
            if self.arrivals.start_rate == self.arrivals.end_rate == 0:
                raise ValueError("a ramp from 0 to 0 sends nothing; raise end_rate")
        elif not isinstance(self.arrivals, TraceArrivals) and self.requests is None and self.duration_s is None:
            raise ValueError("the traffic has no end; give `requests`, `duration_s` or both")
        return self

    @model_validator(mode="after")
    def _has_weights(self) -> Traffic:
        total = sum(each.weight for each in self.classes.values())
        if not (total > 0 and math.isfinite(total)):
            raise ValueError(f"the weights of the classes sum to {total:g}; give at least one class a weight above 0")
        return self

    @model_validator(mode="after")
    def _has_classes_for_slos(self) -> Traffic:
        for name, bounds in self.slo.items():
            if name not in self.classes:
                raise ValueError(f"slo: there is no class {name!r}; classes: {', '.join(self.classes)}")
            try:
                read_class_slo(bounds)
            except ValueError as error:
                raise ValueError(f"slo.{name}: {error}") from None
        return self

    @property
    def slos(self) -> dict[str, ClassSlo]:
        """The SLO of each class that has one."""
        return {name: read_class_slo(bounds) for name, bounds in self.slo.items()}

    @property
    def sent_classes(self) -> dict[str, RequestClass]:
        """The classes with a weight above 0."""
        return {name: each for name, each in self.classes.items() if each.weight > 0}

    @property
    def has_made_text(self) -> bool:
        """Whether a class has text that the tuner makes; the system prompt is text then, too."""
        return any(each.has_made_text for each in self.sent_classes.values())

    @property
    def priorities(self) -> bool:
        """Whether requests have different priorities."""
        return len({each.priority for each in self.sent_classes.values()}) > 1

    @property
    def users(self) -> int | None:
        """Users of a closed loop; None for an open loop."""
        return self.arrivals.users if isinstance(self.arrivals, Closed) else None

    @property
    def max_concurrency(self) -> int | None:
        """Requests in flight at most; None without a limit."""
        return self.users or self.max_in_flight

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return self.system_prompt + max(each.longest() for each in self.sent_classes.values())

    @property
    def output_len(self) -> int:
        """Tokens of the longest answer."""
        return max(each.longest_output() for each in self.sent_classes.values())

    @property
    def input_len(self) -> int:
        """Tokens of the longest request less those of the longest answer."""
        return max(1, self.longest_request - self.output_len)

    def files(self) -> list[Path]:
        """Return every file that the traffic reads: trace, lengths and prompts."""
        files: list[Path] = [self.arrivals.file] if isinstance(self.arrivals, TraceArrivals) else []
        for each in self.sent_classes.values():
            files += [length.file for length in (each.input, each.output) if length is not None and length.file]
            files += [each.trace.file] if each.trace is not None else []
            files += [each.text.file] if isinstance(each.text, TextFile) else []
        return files

    def repeat_seed(self, index: int) -> int:
        """Return the seed of repeat `index` (0-based)."""
        return self.seed + index

    def warmup(self) -> Traffic | None:
        """Return the unscored warm-up: a closed loop of up to eight users, with another seed; None for no warm-up."""
        if self.warmup_requests == 0:
            return None
        changes = {
            "arrivals": Closed(users=min(8, self.warmup_requests)),
            "requests": self.warmup_requests,
            "duration_s": None,
            "max_in_flight": None,
            "seed": self.seed + 500_000,
        }
        return self.model_copy(update=changes)

    @property
    def rate(self) -> float | None:
        """The mean rate in requests/s; None for arrivals without a single rate."""
        arrivals = self.arrivals
        return arrivals.rate if isinstance(arrivals, Poisson | Gamma | Constant) else None

    def at_rate(self, rate: float) -> Traffic:
        """Return the same traffic at another mean rate, in requests/s.

        Raises:
            UserError: for arrivals without a single rate, or a rate that is not positive.
        """
        arrivals = self.arrivals
        if not (rate > 0 and math.isfinite(rate)):
            raise UserError(f"a rate of {rate:g} requests/s is not possible; give a number above 0")
        if not isinstance(arrivals, Poisson | Gamma | Constant):
            raise UserError(
                f"arrivals of process {arrivals.process!r} have no single rate; use poisson, gamma or constant"
            )
        return self.model_copy(update={"arrivals": arrivals.model_copy(update={"rate": rate})})

    def at_rate_for_same_duration(self, rate: float) -> Traffic:
        """Return the traffic at another rate with the same duration, hence with another number of requests.

        With a fixed number of requests, a high rate would end before an overloaded server's queue has grown, and its
        results would be too good.
        """
        faster = self.at_rate(rate)
        if self.requests is None or self.rate is None:
            return faster
        return faster.model_copy(
            update={"requests": max(MIN_REQUESTS_AT_RATE, math.ceil(self.requests * rate / self.rate))}
        )


MIN_REQUESTS_AT_RATE = 20
"""Requests of traffic at another rate, at the least."""

RESERVED_PREFIXES = ("client", "worst")
"""Prefixes of metrics that are not classes: latencies from sending, and the worst class."""

_RESERVED = " or ".join(RESERVED_PREFIXES)
_NAME = re.compile(r"[A-Za-z][\w-]*")


def check_name(name: str, kind: str) -> None:
    """Refuse a name that cannot be the prefix of a metric.

    Args:
        name: the name.
        kind: what it names, for the message.

    Raises:
        ValueError: with the rule for names.
    """
    if not _NAME.fullmatch(name) or name in RESERVED_PREFIXES:
        raise ValueError(f"a {kind} cannot be called {name!r}; use letters, digits, _ and -, and not {_RESERVED}")


def load_traffic(path: Path) -> Traffic:
    """Return the traffic of a YAML file; paths in it are relative to its folder.

    Raises:
        UserError: with the file and the reason, if it cannot be read, or is not YAML or not traffic.
    """
    return read_model(path, Traffic, "traffic file", lambda data: with_absolute_files(data, path.parent))


def with_absolute_files(data: Any, folder: Path) -> Any:
    """Return the data with every `file` as an absolute path from `folder`, because workers may run in another one."""
    if isinstance(data, dict):
        return {
            key: str(folder.absolute() / value)
            if key == "file" and isinstance(value, str)
            else with_absolute_files(value, folder)
            for key, value in data.items()
        }
    return data
