"""Formulas with known optima.

Each problem has parameters that change the score and idle parameters that do not. The optimum is worked out by hand
where the score is a product of independent factors. Otherwise the few parameters that interact are enumerated.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from benchmarks.search.problems.problem import Problem
from benchmarks.search.problems.synthetic.formula import FormulaProblem, bump
from records.trials import Config
from search_spaces import ParameterValue, Trial


@dataclass(frozen=True)
class Gains:
    """The formula of `conditional`: gains in units of the throughput's logarithm, and the peaks of parameters.

    A pair is a gain and the value at its peak. `size` and `share` are peaks; `level` is in tokens/s.
    """

    level: float = 1000.0
    window: tuple[float, float] = (0.1, 8)
    draft: float = 0.3
    rate: tuple[float, float] = (0.8, 0.1)
    depth: tuple[float, float] = (0.4, 7)
    tree: float = 0.15
    lookup: float = 0.1
    size: float = 512
    batch: tuple[float, float] = (0.25, 256)
    share: float = 0.8
    modes: Mapping[str, float] = field(default_factory=lambda: {"None": 0.0, "x": -0.05, "y": 0.08})


class Conditional(FormulaProblem):
    """Three methods with parameters of their own; the method of the optimum is the worst on average.

    Four parameters are idle.
    """

    name = "conditional"
    gains = Gains()
    effective_defaults: Config = MappingProxyType(
        {
            **{"method": "plain", "plain_window": 4, "batch": 64, "share": 0.9, "mode": None},
            **{"idle_step": 1, "idle_flag": False, "idle_share": 0.5, "idle_kind": "a"},
        }
    )
    optimum: Config = MappingProxyType(
        {
            **{"method": "draft", "draft_depth": 7, "draft_rate": 0.1, "draft_tree": True},
            **{"batch": 256, "share": 0.8, "mode": "y"},
        }
    )

    def define(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return a configuration of the trial's suggestions."""
        method = trial.suggest_categorical("method", ["plain", "draft", "lookup"])
        config: dict[str, ParameterValue] = {"method": method}
        if method == "plain":
            config["plain_window"] = trial.suggest_int("plain_window", 1, 16)
        elif method == "draft":
            config["draft_depth"] = trial.suggest_int("draft_depth", 1, 12)
            config["draft_rate"] = trial.suggest_float("draft_rate", 0.01, 1.0, log=True)
            config["draft_tree"] = trial.suggest_categorical("draft_tree", [False, True])
        else:
            config["lookup_size"] = trial.suggest_int("lookup_size", 16, 4096, log=True)
        config["batch"] = trial.suggest_int("batch", 8, 1024, log=True)
        config["share"] = trial.suggest_float("share", 0.5, 0.95, step=0.05)
        config["mode"] = trial.suggest_categorical("mode", [None, "x", "y"])
        config["idle_step"] = trial.suggest_int("idle_step", 1, 16)
        config["idle_flag"] = trial.suggest_categorical("idle_flag", [False, True])
        config["idle_share"] = trial.suggest_float("idle_share", 0.0, 1.0)
        config["idle_kind"] = trial.suggest_categorical("idle_kind", ["a", "b", "c"])
        return config

    def metrics(self, config: Config) -> dict[str, float]:
        """Return the metrics without noise."""
        gains, method = self.gains, config["method"]
        if method == "plain":
            gain = gains.window[0] * bump(config["plain_window"], gains.window[1], 8)
        elif method == "draft":
            gain = gains.draft + gains.rate[0] * bump(config["draft_rate"], gains.rate[1], 10, log=True)
            no_tree = 0.0 if config["draft_tree"] else gains.tree
            gain += gains.depth[0] * bump(config["draft_depth"], gains.depth[1], 6) - no_tree
        else:
            gain = gains.lookup + 0.3 * bump(config["lookup_size"], gains.size, 8, log=True)
        share_gain = 0.1 * bump(config["share"], gains.share, 0.3)
        gain += gains.batch[0] * bump(config["batch"], gains.batch[1], 8, log=True) + share_gain
        gain += gains.modes[str(config["mode"])]
        return {"output_throughput": gains.level * math.exp(gain)}

    def optima(self) -> Iterable[Config]:
        """Yield the optimum: each parameter at the peak of its own factor."""
        yield self.optimum


class CrashHalf(FormulaProblem):
    """Half of the space crashes, where sequences x tokens > EDGE; the score grows towards that edge."""

    name = "crash-half"
    EDGE = 2**17.5
    """The product of the ranges' logarithmic middles, 2^3..2^10 and 2^8..2^14: half of the area lies beyond."""
    effective_defaults: Config = MappingProxyType(
        {"seqs": 64, "tokens": 1024, "kind": None, "delay": 0.5, "idle_size": 16, "idle_flag": False}
    )

    def define(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return a configuration of the trial's suggestions."""
        return {
            "seqs": trial.suggest_int("seqs", 8, 1024, log=True),
            "tokens": trial.suggest_int("tokens", 256, 16384, log=True),
            "kind": trial.suggest_categorical("kind", [None, "fast", "small", "odd"]),
            "delay": trial.suggest_float("delay", 0.0, 1.0),
            "idle_size": trial.suggest_categorical("idle_size", [16, 32, 64]),
            "idle_flag": trial.suggest_categorical("idle_flag", [False, True]),
        }

    def metrics(self, config: Config) -> dict[str, float] | None:
        """Return the metrics without noise."""
        seqs, tokens = config["seqs"], config["tokens"]
        assert isinstance(seqs, int)
        assert isinstance(tokens, int)
        if seqs * tokens > self.EDGE:
            return None
        gain = 0.15 * math.log2(seqs * tokens) + 0.5 * bump(seqs, 128, 8, log=True)
        gain += {"None": 0.0, "fast": 0.1, "small": -0.1, "odd": -0.2}[str(config["kind"])]
        gain += 0.2 * bump(config["delay"], 0.25, 1.0)
        return {"output_throughput": 1000.0 * math.exp(gain)}

    def optima(self) -> Iterable[Config]:
        """Yield the most tokens that do not crash for each number of sequences."""
        for seqs in range(8, 1025):
            tokens = min(16384, math.floor(self.EDGE / seqs))
            if tokens >= 256:
                yield {"seqs": seqs, "tokens": tokens, "kind": "fast", "delay": 0.25}


class BatchTradeOff(FormulaProblem):
    """Throughput against latency over a batch size; the configuration with the best throughput breaks the SLO."""

    objective_texts = ("output_throughput", "p99_tpot_ms")

    def __init__(self, name: str, slo_ms: float, batch: int, prior: str = "right") -> None:
        self.name = name
        self.slo_texts = (f"p99_tpot_ms<{slo_ms:g}",)
        self.effective_defaults = {
            **{"batch": batch, "chunk": 2048, "kernel": None, "graphs": "piecewise", "overlap": True, "interval": 1},
            **{"idle_share": 0.9, "idle_size": 16, "idle_policy": "fcfs"},
        }
        super().__init__(prior)

    def define(self, trial: Trial) -> dict[str, ParameterValue]:
        """Return a configuration of the trial's suggestions."""
        return {
            "batch": trial.suggest_int("batch", 4, 512, log=True),
            "chunk": trial.suggest_int("chunk", 256, 16384, log=True),
            "kernel": trial.suggest_categorical("kernel", [None, "a", "b"]),
            "graphs": trial.suggest_categorical("graphs", ["none", "piecewise", "full"]),
            "overlap": trial.suggest_categorical("overlap", [False, True]),
            "interval": trial.suggest_int("interval", 1, 16, log=True),
            "idle_share": trial.suggest_float("idle_share", 0.7, 0.95, step=0.005),
            "idle_size": trial.suggest_categorical("idle_size", [16, 32, 64, 128]),
            "idle_policy": trial.suggest_categorical("idle_policy", ["fcfs", "priority"]),
        }

    def metrics(self, config: Config) -> dict[str, float]:
        """Return the metrics: a step takes a fixed time and a time that grows with the batch."""
        batch = config["batch"]
        assert isinstance(batch, int)
        fixed = 6.0 * {"none": 2.5, "piecewise": 1.3, "full": 1.0}[str(config["graphs"])]
        fixed *= 1.0 if config["overlap"] else 1.5
        each = 0.15 * {"None": 1.0, "a": 0.8, "b": 1.3}[str(config["kernel"])]
        step = (fixed + each * batch) * math.exp(-0.1 * bump(config["chunk"], 4096, 8, log=True))
        tail = 1.1 * math.exp(-0.05 * bump(config["interval"], 1, 16, log=True))
        return {"output_throughput": 1000.0 * batch / step, "p99_tpot_ms": step * tail}

    def optima(self) -> Iterable[Config]:
        """Yield every batch size, with the other parameters at their optimum."""
        for batch in range(4, 513):
            yield {"batch": batch, "chunk": 4096, "kernel": "a", "graphs": "full", "overlap": True, "interval": 1}


class Flat(BatchTradeOff):
    """No parameter changes the score: the optimum is the defaults."""

    def __init__(self, prior: str = "right") -> None:
        super().__init__("flat", 50.0, 64, prior)

    def metrics(self, config: Config) -> dict[str, float]:
        """Return the metrics without noise."""
        return {"output_throughput": 3000.0, "p99_tpot_ms": 20.0}

    def optima(self) -> Iterable[Config]:
        """Yield the defaults."""
        yield {}


class WrongPrior(Conditional):
    """`conditional` with a prior that inverts every improvement."""

    name = "conditional-wrong-prior"

    def __init__(self, prior: str = "right") -> None:
        super().__init__(prior, wrong_prior=True)


class UnrelatedPrior(WrongPrior):
    """`conditional` with a prior that is drawn at random; it predicts a crash for a third of the configurations."""

    name = "conditional-unrelated-prior"
    wrong_prior_seed = "unrelated"
    wrong_prior_is_random = True


SYNTHETIC: dict[str, Callable[[str], Problem]] = {
    "conditional": Conditional,
    "conditional-wrong-prior": WrongPrior,
    "conditional-unrelated-prior": UnrelatedPrior,
    "crash-half": CrashHalf,
    "infeasible-defaults": lambda prior: BatchTradeOff("infeasible-defaults", 12.0, 128, prior),
    "flat": Flat,
    "two-objectives": lambda prior: BatchTradeOff("two-objectives", 60.0, 64, prior),
}
"""Each problem by its name; the argument is the kind of prior."""
