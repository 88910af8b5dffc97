"""Problems for source studies of transfer: related to another problem as a second card or model is, or unrelated."""

import math
from collections.abc import Callable, Iterable
from types import MappingProxyType

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.synthetic.formula import bump
from benchmarks.search.problems.synthetic.problems import BatchTradeOff, Conditional, CrashHalf, Gains
from records.trials import Config


class RelatedConditional(Conditional):
    """`conditional` with other peaks, other gains and another best mode."""

    name = "conditional-related"

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


class OppositeConditional(Conditional):
    """`conditional` with the inverse throughput: its best configurations are the worst here."""

    name = "conditional-opposite"

    def metrics(self, config: Config) -> dict[str, float]:
        """Return the metrics without noise."""
        return {"output_throughput": 1e6 / super().metrics(config)["output_throughput"]}

    def optima(self) -> Iterable[Config]:
        """Yield the corner of the space where each parameter is farthest from its peak."""
        yield {
            **{"method": "draft", "draft_depth": 1, "draft_rate": 0.01, "draft_tree": False},
            **{"batch": 8, "share": 0.5, "mode": "x"},
        }


class UnrelatedConditional(Conditional):
    """The parameters of `conditional` with another formula, in which the idle parameters count."""

    name = "conditional-unrelated-problem"
    optimum: Config = MappingProxyType(
        {
            **{"method": "plain", "plain_window": 2, "batch": 16, "share": 0.55, "mode": "x"},
            **{"idle_step": 12, "idle_flag": True, "idle_kind": "c"},
        }
    )

    def metrics(self, config: Config) -> dict[str, float]:
        """Return the metrics without noise."""
        gain = {"plain": 0.3, "draft": 0.0, "lookup": 0.1}[str(config["method"])]
        gain += 0.2 * bump(config["batch"], 16, 8, log=True) + 0.3 * bump(config["share"], 0.55, 0.3)
        gain += 0.3 * bump(config["idle_step"], 12, 8) + (0.1 if config["idle_flag"] else 0.0)
        gain += {"a": 0.0, "b": -0.1, "c": 0.15}[str(config["idle_kind"])]
        gain += {"None": 0.0, "x": 0.1, "y": -0.1}[str(config["mode"])]
        gain += 0.1 * bump(config["plain_window"], 2, 8) if config["method"] == "plain" else 0.0
        return {"output_throughput": 1000.0 * math.exp(gain)}


class RelatedCrashHalf(CrashHalf):
    """`crash-half` with the edge at half of the memory, and other gains of the kinds."""

    name = "crash-half-related"
    EDGE = 2**16.5

    def metrics(self, config: Config) -> dict[str, float] | None:
        """Return the metrics without noise."""
        metrics = super().metrics(config)
        if metrics is None:
            return None
        kind_gain = {"None": 0.0, "fast": -0.05, "small": 0.1, "odd": 0.05}[str(config["kind"])]
        return {name: 3.0 * value * math.exp(kind_gain) for name, value in metrics.items()}


class RelatedTradeOff(BatchTradeOff):
    """A `BatchTradeOff` whose steps take more fixed time and less time per request."""

    def metrics(self, config: Config) -> dict[str, float]:
        """Return the metrics without noise."""
        batch, metrics = config["batch"], super().metrics(config)
        assert isinstance(batch, int)
        factor = (9.0 + 0.1 * batch) / (6.0 + 0.15 * batch)
        return {
            "output_throughput": metrics["output_throughput"] / factor,
            "p99_tpot_ms": metrics["p99_tpot_ms"] * factor,
        }


RELATED: dict[str, Callable[[str], Problem]] = {
    "conditional-related": RelatedConditional,
    "conditional-opposite": OppositeConditional,
    "conditional-unrelated-problem": UnrelatedConditional,
    "crash-half-related": RelatedCrashHalf,
    "infeasible-defaults-related": lambda prior: RelatedTradeOff("infeasible-defaults-related", 12.0, 128, prior),
    "two-objectives-related": lambda prior: RelatedTradeOff("two-objectives-related", 60.0, 64, prior),
}
"""Each problem by its name; the argument is the kind of prior."""
