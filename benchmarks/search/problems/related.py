"""Problems that are like others, as another card or another model is: what an earlier study may have been."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import MappingProxyType

from benchmarks.search.problems.problem import Config, Problem
from benchmarks.search.problems.synthetic import Conditional, CrashHalf, Gains, Metrics, Serving, bump


class ConditionalCousin(Conditional):
    """`conditional` elsewhere: every peak is moved, every gain is another, and the best mode is another too."""

    name = "conditional-cousin"

    gains = Gains(
        level=2500.0,
        window=(0.15, 5),
        draft=0.2,
        rate=(0.6, 0.15),
        depth=(0.3, 5),
        tree=0.1,
        lookup=0.12,
        size=256,
        batch=(0.3, 160),
        share=0.9,
        modes={"None": 0.0, "x": 0.06, "y": 0.03},
    )

    def optima(self) -> Iterable[Config]:
        """Yield the optimum."""
        yield {**self.optimum, "draft_rate": 0.15, "draft_depth": 5, "batch": 160, "share": 0.9, "mode": "x"}


class ConditionalOpposite(Conditional):
    """`conditional` turned around: what is good there is bad here."""

    name = "conditional-opposite"

    def metrics(self, config: Config) -> Metrics:
        """See `Synthetic`."""
        return {"output_throughput": 1e6 / super().metrics(config)["output_throughput"]}

    def optima(self) -> Iterable[Config]:
        """Yield one of the corners, where everything is as far from its peak as it can be."""
        yield {
            **{"method": "draft", "draft_depth": 1, "draft_rate": 0.01, "draft_tree": False},
            **{"batch": 8, "share": 0.5, "mode": "x"},
        }


class ConditionalStranger(Conditional):
    """The parameters of `conditional`, of which others matter, and in other ways."""

    name = "conditional-stranger"
    optimum: Config = MappingProxyType(
        {
            **{"method": "plain", "plain_window": 2, "batch": 16, "share": 0.55, "mode": "x"},
            **{"idle_step": 12, "idle_flag": True, "idle_kind": "c"},
        }
    )

    def metrics(self, config: Config) -> Metrics:
        """See `Synthetic`."""
        gain = {"plain": 0.3, "draft": 0.0, "lookup": 0.1}[str(config["method"])]
        gain += 0.2 * bump(config["batch"], 16, 8, log=True) + 0.3 * bump(config["share"], 0.55, 0.3)
        gain += 0.3 * bump(config["idle_step"], 12, 8) + (0.1 if config["idle_flag"] else 0.0)
        gain += {"a": 0.0, "b": -0.1, "c": 0.15}[str(config["idle_kind"])]
        gain += {"None": 0.0, "x": 0.1, "y": -0.1}[str(config["mode"])]
        gain += 0.1 * bump(config["plain_window"], 2, 8) if config["method"] == "plain" else 0.0
        return {"output_throughput": 1000.0 * math.exp(gain)}


class CrashHalfCousin(CrashHalf):
    """`crash-half` with half of the memory and other kernels."""

    name = "crash-half-cousin"
    EDGE = 2**16.5

    def metrics(self, config: Config) -> Metrics | None:
        """See `Synthetic`."""
        found = super().metrics(config)
        if found is None:
            return None
        other = {"None": 0.0, "fast": -0.05, "small": 0.1, "odd": 0.05}[str(config["kind"])]
        return {name: 3.0 * value * math.exp(other) for name, value in found.items()}


class ServingCousin(Serving):
    """A `Serving` on a machine that is slower by itself and faster with each request of the batch."""

    def metrics(self, config: Config) -> Metrics:
        """See `Synthetic`."""
        batch, found = config["batch"], super().metrics(config)
        assert isinstance(batch, int)
        factor = (9.0 + 0.1 * batch) / (6.0 + 0.15 * batch)
        return {"output_throughput": found["output_throughput"] / factor, "p99_tpot_ms": found["p99_tpot_ms"] * factor}


COUSINS: dict[str, Callable[[str], Problem]] = {
    "conditional-cousin": ConditionalCousin,
    "conditional-opposite": ConditionalOpposite,
    "conditional-stranger": ConditionalStranger,
    "crash-half-cousin": CrashHalfCousin,
    "infeasible-defaults-cousin": lambda prior: ServingCousin("infeasible-defaults-cousin", 12.0, 128, prior),
    "two-objectives-cousin": lambda prior: ServingCousin("two-objectives-cousin", 60.0, 64, prior),
}
"""Each by its name, made with the prior that is wanted."""
