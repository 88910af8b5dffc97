"""Traffic: an open loop of requests of several classes, and the arrival processes that say when they are due.

Times are in seconds from the start of the run. The rate of `arrivals` is in arrivals/s: a session of several requests
arrives once. Any other rate is in requests/s.

- `gamma` has gaps of mean 1 / rate and shape `burstiness`, as `vllm bench serve --burstiness`. A shape of 1 is a
  Poisson process, a lower one gives bursts, a higher one more even arrivals. The index of dispersion of counts tends to
  1 / burstiness.
- `ramp` is a Poisson process whose rate changes linearly from `start_rate` to `end_rate` over the duration. A Poisson
  process of rate 1 is mapped through the inverse of the integrated rate (Cinlar, Introduction to Stochastic Processes,
  1975, theorem 4.7.3).

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
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.random import Generator
from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from tuner.errors import UserError
from tuner.workloads.reading import LARGEST_LENGTH, MAX_REQUESTS, Strict, read_model
from tuner.workloads.request_class import ClassSlo, RequestClass, TextFile, read_class_slo
from tuner.workloads.traces.formats import read_times
from tuner.workloads.traces.recording import Unit
from tuner.workloads.traces.turns import recorded_sessions

RequestRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Closed(Strict):
    """A closed loop: each of `users` sends a request when its last one ends, so requests have no scheduled times."""

    process: Literal["closed"] = "closed"
    users: int = Field(50, ge=1)


class Poisson(Strict):
    """Independent arrivals at a constant rate."""

    process: Literal["poisson"]
    rate: RequestRate

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times without an end."""
        return _cumulated_gaps(random, 1.0, self.rate)


class Gamma(Strict):
    """Arrivals at a constant mean rate with gamma-distributed gaps."""

    process: Literal["gamma"]
    rate: RequestRate
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times without an end."""
        return _cumulated_gaps(random, self.burstiness, self.rate)


class Constant(Strict):
    """One arrival every 1 / rate seconds, the first at 0 s."""

    process: Literal["constant"]
    rate: RequestRate

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times without an end."""
        return (number / self.rate for number in count())


class Ramp(Strict):
    """Poisson arrivals whose rate changes linearly over the duration."""

    process: Literal["ramp"]
    start_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    end_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times up to the end of the ramp.

        With low = start_rate and slope = (end_rate - start_rate) / duration_s, the integrated rate is
        A(t) = low t + slope t² / 2. An arrival of the process of rate 1 at area A is due at
        t = 2 A / (low + sqrt(low² + 2 slope A)).
        """
        assert duration_s is not None  # `Traffic` refuses a ramp without a duration
        low, slope = self.start_rate, (self.end_rate - self.start_rate) / duration_s
        for area in _cumulated_gaps(random, 1.0, 1.0):
            root = low * low + 2.0 * slope * area
            rate = math.sqrt(root) if root >= 0.0 else math.nan
            if not low + rate > 0.0:
                return
            yield 2.0 * area / (low + rate)


class TraceArrivals(Strict):
    """Times from a file; the first becomes 0, and `speed` 2 halves all gaps.

    The file has one time per line, in seconds and in order, or is a recorded trace (`tuner.workloads.traces`).
    `unit` is that of its times, where the file does not tell or tells it wrongly.
    """

    process: Literal["trace"]
    file: Path
    speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    unit: Unit | None = None

    def times(self, random: Generator, duration_s: float | None) -> Iterator[float]:
        """Yield the times of the file.

        Raises:
            UserError: with file and line, if the file cannot be read, is empty, has a line that is not a time, or is
                not sorted, and if the unit of its times is not known.
        """
        times = read_times(self.file, self.unit)
        return iter([(at - times[0]) / self.speed for at in times])


Arrivals = Annotated[Closed | Poisson | Gamma | Constant | Ramp | TraceArrivals, Field(discriminator="process")]


def _cumulated_gaps(random: Generator, shape: float, rate: float) -> Iterator[float]:
    """Yield the cumulated sums of gamma-distributed gaps with mean 1 / rate."""
    at = 0.0
    while True:
        for gap in random.gamma(shape, 1.0 / (shape * rate), 1024).tolist():
            at += gap
            yield at


class Traffic(Strict):
    """Traffic. It ends after `requests`, after `duration_s`, or with its trace, whichever comes first.

    Attributes:
        arrivals: the arrival process.
        requests: number of requests; the session that reaches it is sent whole.
        duration_s: seconds in which requests are due.
        max_in_flight: requests in flight at most. A request that is due at the limit waits; its latency counts from the
            scheduled time.
        system_prompt: tokens that every prompt begins with, before a class's own prefix.
        timeout_s: seconds after the scheduled time at which a request is given up.
        classes: the request classes by name.
        slo: the bounds of each class that has an SLO; see `tuner.workloads.request_class`.
        temperature: as in `ClosedLoop`.
        warmup_requests: requests of the warm-up.
        seed: repeat i uses seed + i; the warm-up uses another one.
    """

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
    def _has_times_of_sessions(self) -> Traffic:
        file = self._answered_file
        if file is None or not isinstance(self.arrivals, TraceArrivals):
            return self
        if len(self.sent_classes) > 1 or self.arrivals.file != file:
            raise ValueError("`when: answered` needs times of the same file and one class, or arrivals at a rate")
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
        """Return every file that the traffic reads: trace, prompts, and numbers of a distribution."""
        files: list[Path] = [self.arrivals.file] if isinstance(self.arrivals, TraceArrivals) else []
        for each in self.sent_classes.values():
            files += [length.file for length in each.distributions() if length.file]
            files += [each.trace.file] if each.trace is not None else []
            files += [each.text.file] if isinstance(each.text, TextFile) else []
        return files

    def repeat_seed(self, index: int) -> int:
        """Return the seed of repeat `index` (0-based)."""
        return self.seed + index

    def warmup(self) -> Traffic | None:
        """Return the unscored warm-up: a closed loop of up to eight users, with another seed; None for no warm-up.

        Its sessions have no pauses.
        """
        if self.warmup_requests == 0:
            return None
        changes = {
            "arrivals": Closed(users=min(8, self.warmup_requests)),
            "requests": self.warmup_requests,
            "duration_s": None,
            "max_in_flight": None,
            "classes": {name: each.without_pauses for name, each in self.classes.items()},
            "seed": self.seed + 500_000,
        }
        return self.model_copy(update=changes)

    @property
    def has_sessions(self) -> bool:
        """Whether a later request waits for the answer to an earlier one."""
        return any(each.has_sessions for each in self.sent_classes.values())

    @property
    def requests_per_arrival(self) -> float:
        """The mean number of requests of an arrival: 1 without sessions."""
        counts = [(each.weight, each.mean_requests) for each in self.sent_classes.values()]
        return sum(weight * count for weight, count in counts) / sum(weight for weight, _ in counts)

    def residence_s(self, request_s: float) -> float:
        """Return the mean seconds from an arrival to its last answer, in the class with the longest; see there."""
        return max(each.residence_s(request_s) for each in self.sent_classes.values())

    @property
    def rate(self) -> float | None:
        """The mean rate in requests/s; None for arrivals without a single rate."""
        arrivals = self.arrivals
        return arrivals.rate * self.requests_per_arrival if isinstance(arrivals, Poisson | Gamma | Constant) else None

    @property
    def mean_rate(self) -> float | None:
        """The mean rate in requests/s, also of a trace at its speed; None for a closed loop and a ramp.

        Raises:
            UserError: if the trace cannot be read.
        """
        times = self._trace_times()
        if not times or times[-1] == times[0]:
            return self.rate
        return self.requests_per_arrival * (len(times) - 1) / (times[-1] - times[0])

    def arrival_times(self, random: Generator) -> Iterator[float]:
        """Yield the times of arrivals; of a recording with sessions, those of the first requests."""
        assert not isinstance(self.arrivals, Closed)
        times = self.arrivals.times(random, self.duration_s)
        answered = self._answered_file
        if answered is None or not isinstance(self.arrivals, TraceArrivals):
            return times
        firsts = {turns[0].places[0] for turns in recorded_sessions(answered).sessions}
        return (at for place, at in enumerate(times) if place in firsts)

    @property
    def _answered_file(self) -> Path | None:
        traces = (each.trace for each in self.sent_classes.values())
        return next((each.file for each in traces if each is not None and each.when == "answered"), None)

    def _trace_times(self) -> list[float]:
        """Return the times of a trace's arrivals; empty for other arrivals."""
        if not isinstance(self.arrivals, TraceArrivals):
            return []
        times = self.arrival_times(np.random.default_rng(0))
        end = math.inf if self.duration_s is None else self.duration_s
        return list(islice((at for at in times if at < end), self.requests))

    def at_rate(self, rate: float) -> Traffic:
        """Return the same traffic at another mean rate, in requests/s; a trace gets another speed.

        Raises:
            UserError: for arrivals without a single rate, or a rate that is not positive.
        """
        arrivals = self.arrivals
        if not (rate > 0 and math.isfinite(rate)):
            raise UserError(f"a rate of {rate:g} requests/s is not possible; give a number above 0")
        if isinstance(arrivals, TraceArrivals) and (recorded := self.mean_rate) is not None:
            changed: Arrivals = arrivals.model_copy(update={"speed": arrivals.speed * rate / recorded})
        elif isinstance(arrivals, Poisson | Gamma | Constant):
            changed = arrivals.model_copy(update={"rate": rate / self.requests_per_arrival})
        else:
            rule = f"arrivals of process {arrivals.process!r} have no single rate"
            raise UserError(f"{rule}; use poisson, gamma, constant, or a trace of some duration")
        return self.model_copy(update={"arrivals": changed})

    def at_rate_for_same_duration(self, rate: float) -> Traffic:
        """Return the traffic at another rate with the same duration, hence with another number of requests.

        With a fixed number of requests, a high rate would end before an overloaded server's queue has grown, and its
        results would be too good. A trace has no more requests than it has: at a high rate, it is shorter.
        """
        faster, own = self.at_rate(rate), self.mean_rate
        count = self.requests or self.requests_per_arrival * len(self._trace_times())
        if not count or own is None:
            return faster
        return faster.model_copy(update={"requests": max(_MIN_REQUESTS_AT_RATE, math.ceil(count * rate / own))})


_MIN_REQUESTS_AT_RATE = 20
"""Requests of traffic at another rate, at the least."""

RESERVED_PREFIXES = ("client", "worst")
"""Prefixes of metrics that are not classes: latencies from sending, and the worst class."""

_RESERVED = " or ".join(RESERVED_PREFIXES)
_NAME = re.compile(r"[A-Za-z][\w-]*")


def check_name(name: str, kind: str) -> None:
    """Refuse a name that cannot be the prefix of a metric."""
    if not _NAME.fullmatch(name) or name in RESERVED_PREFIXES:
        raise ValueError(f"a {kind} cannot be called {name!r}; use letters, digits, _ and -, and not {_RESERVED}")


def load_traffic(path: Path) -> Traffic:
    """Return the traffic of a YAML file; paths in it are relative to its folder.

    Raises:
        UserError: with the file and the reason, if it cannot be read, or is not YAML or not traffic.
    """
    return read_model(path, Traffic, "traffic file", lambda data: with_files(data, absolute_from(path.parent)))


def with_files(data: Any, change: Callable[[str], str]) -> Any:
    """Return the data of a load with every `file` changed."""
    if isinstance(data, dict):
        return {
            key: change(value) if key == "file" and isinstance(value, str) else with_files(value, change)
            for key, value in data.items()
        }
    return data


def absolute_from(folder: Path) -> Callable[[str], str]:
    """Return what makes paths absolute that are relative to a folder, because workers may run in another one."""
    return lambda file: str(folder.absolute() / file)


def is_as_read(file: Path, digest: str) -> bool:
    """Return whether a file that a load reads is there with the content of a SHA-256 digest."""
    try:
        return sha256(file.read_bytes()).hexdigest() == digest
    except OSError:
        return False
