"""Several loads for one running server: one after another, each with figures of its own.

A load's parts are ordinary traffic whose classes carry its name: class `docs` of load `day` is `day.docs`, in records,
metrics and SLOs alike. Loads are never averaged: throughputs at different rates have no meaningful mean. Over all of
them exist only what counts requests (`success_rate`, `goodput_share`) and the worst class.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from storage.records import Repeat
from tuner.workloads.class_slo import ClassSlo
from tuner.workloads.run_metrics import MetricValues, worst_value
from tuner.workloads.traffic import RESERVED_PREFIXES, Traffic, check_name

POOLED_METRICS = ("success_rate", "goodput_share")
"""Metrics of a suite as a whole: shares of all offered requests."""


class Suite(BaseModel):
    """Named loads. `temperature` and `seed` are as in `Workload`, and those of every load."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    loads: dict[str, Traffic] = Field(min_length=2)
    temperature: float | None = Field(None, ge=0)
    seed: int = Field(1000, ge=0)

    @field_validator("loads")
    @classmethod
    def _has_names(cls, loads: dict[str, Traffic]) -> dict[str, Traffic]:
        for name in loads:
            check_name(name, "load")
        return loads

    def parts(self) -> dict[str, Traffic]:
        """Return the loads in the order in which they are sent, their classes under their own name."""
        return {name: self._part(name, load) for name, load in self.loads.items()}

    def _part(self, name: str, load: Traffic) -> Traffic:
        changes = {
            "classes": {f"{name}.{each}": known for each, known in load.classes.items()},
            "slo": {f"{name}.{each}": bounds for each, bounds in load.slo.items()},
            "temperature": self.temperature,
            "seed": self.seed,
        }
        return load.model_copy(update=changes)

    @property
    def sent_classes(self) -> list[str]:
        """The classes of which anything is sent, as `LOAD.CLASS`."""
        return [name for part in self.parts().values() for name in part.sent_classes]

    @property
    def slos(self) -> dict[str, ClassSlo]:
        """What each class was promised."""
        return {name: slo for part in self.parts().values() for name, slo in part.slos.items()}

    @property
    def prefixes(self) -> list[str]:
        """What a metric's name may begin with."""
        names = [*self.loads, *(f"{load}.{each}" for load in self.loads for each in RESERVED_PREFIXES)]
        return [*names, *self.sent_classes, "worst"]

    @property
    def longest(self) -> Traffic:
        """The load with the longest request."""
        return max(self.parts().values(), key=lambda load: load.longest_request)

    @property
    def longest_request(self) -> int:
        """The tokens of the longest request of any load."""
        return self.longest.longest_request

    @property
    def output_len(self) -> int:
        """The tokens of the longest answer of any load."""
        return max(load.output_len for load in self.loads.values())

    @property
    def input_len(self) -> int:
        """The longest request's tokens without the longest answer's."""
        return max(1, self.longest_request - self.output_len)

    @property
    def max_concurrency(self) -> int | None:
        """The most requests that run at once under any load; None where one of them knows no bound."""
        known = [load.max_concurrency for load in self.loads.values()]
        return None if None in known else max(each for each in known if each is not None)

    def files(self) -> list[Path]:
        """Return every file that the loads are made from."""
        return [file for load in self.loads.values() for file in load.files()]

    def place(self, repeat: int, part: int) -> int:
        """Return the index of a load's run, by which its seed and its files differ from every other's."""
        return repeat * len(self.loads) + part


def merge_repeats(index: int, repeats: Sequence[tuple[str, Repeat]]) -> Repeat:
    """Return repeat `index` of a suite from those of its loads, by name.

    A metric of a load is called `LOAD.name`, one of its classes `LOAD.CLASS.name`.
    """
    metrics: MetricValues = {}
    for name, repeat in repeats:
        for key, value in repeat.metrics.items():
            metrics[key if key.startswith(f"{name}.") else f"{name}.{key}"] = value
    every = [repeat for _, repeat in repeats]
    offered = sum(repeat.offered for repeat in every)
    completed = sum(repeat.completed for repeat in every)
    durations = [repeat.duration_s for repeat in every]
    good = [share for repeat in every if (share := _good(repeat)) is not None]
    metrics["success_rate"] = completed / offered if offered else None
    metrics["goodput_share"] = sum(good) / offered if offered and len(good) == len(every) else None
    inner = [{key[6:]: value for key, value in each.metrics.items() if key.startswith("worst.")} for each in every]
    metrics |= {f"worst.{key}": worst_value(key, inner) for key in inner[0]}
    return Repeat(
        index=index,
        seed=every[0].seed,
        offered=offered,
        completed=completed,
        failed=offered - completed,
        duration_s=None if None in durations else sum(each for each in durations if each is not None),
        metrics=metrics,
    )


def _good(repeat: Repeat) -> float | None:
    share = repeat.metrics.get("goodput_share")
    return None if share is None else share * repeat.offered
