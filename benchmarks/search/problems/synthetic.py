"""Problems without a server, whose best configurations are known.

Each has parameters that do something and some that do nothing. The optimum is worked out by hand where the score is a
product of independent factors, and else found by going through the few parameters that interact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from benchmarks.search.problems.problem import Config, Outcome, Problem, Suggest, crashed, generator, key_of, maximised
from search_spaces import ParameterValue
from tuner.scoring.objectives import parse_objective
from tuner.scoring.slo import parse_slo

NOISE = 0.03
"""Standard deviation of a measurement's logarithm."""
SECONDS, CRASH_SECONDS = 60.0, 20.0
Metrics = dict[str, float]


class Synthetic(Problem):
    """A problem that is a formula. `effective_defaults` are the values that count where a configuration has none."""

    family = "synthetic"
    effective_defaults: Config
    texts: tuple[str, ...] = ("output_throughput",)
    slo_texts: tuple[str, ...] = ()

    def __init__(self, prior: str = "right", misled: bool = False) -> None:
        super().__init__(prior)
        self._misled = misled
        self.objectives = tuple(parse_objective(text) for text in self.texts)
        self._slos = tuple(parse_slo(text) for text in self.slo_texts)
        self.constraint_names = tuple(str(slo) for slo in self._slos)

    @abstractmethod
    def metrics(self, config: Config) -> Metrics | None:
        """Return the metrics of a complete configuration, without noise; None if it crashes."""

    @abstractmethod
    def optima(self) -> Iterable[Config]:
        """Yield complete configurations of which one is the optimum."""

    def defaults(self) -> tuple[dict[str, ParameterValue], dict[str, ParameterValue]]:
        """See `Problem`: nothing is set, and every effective value is known."""
        return {}, dict(self.effective_defaults)

    def exact(self, config: Config, speed: float = 1.0) -> Outcome:
        """Return the outcome on a machine that is so much faster than usual."""
        found = self.metrics({**self.effective_defaults, **config})
        if found is None:
            return crashed(CRASH_SECONDS)
        values = tuple(
            found[each.metric] * speed if maximised(each) else found[each.metric] / speed for each in self.objectives
        )
        named = dict(zip((each.metric for each in self.objectives), values, strict=True))
        constraints = {str(slo): slo.violation(named[slo.metric]) for slo in self._slos}
        reference = self.reference
        assert reference is not None, "the defaults of a synthetic problem run"
        return Outcome(values, constraints, self.score_of(values, reference), SECONDS)

    def measure(self, config: Config, seed: int) -> Outcome:
        """See `Problem`."""
        return self.exact(config, math.exp(NOISE * generator(key_of(config), seed).standard_normal()))

    def find_truth(self, config: Config) -> float | None:
        """See `Problem`."""
        found = self.exact(config)
        return found.score if found.feasible else None

    def find_prior(self, config: Config) -> Outcome | None:
        """See `Problem`: there is no physics, but one that misleads can be had."""
        return self.exact(config) if self._misled else None

    def misleads(self) -> bool:
        """See `Problem`."""
        return self._misled

    @cached_property
    def reference(self) -> tuple[float, ...] | None:
        """See `Problem`."""
        found = self.metrics(self.effective_defaults)
        return None if found is None else tuple(found[each.metric] for each in self.objectives)

    @cached_property
    def best(self) -> float:
        """See `Problem`."""
        return max(score for each in self.optima() if (score := self.truth(each)) is not None)


def bump(value: ParameterValue, peak: float, width: float, log: bool = False) -> float:
    """Return 0 at the peak and -1 at `width` from it, quadratic; `width` is a factor where `log`."""
    assert isinstance(value, int | float)
    if log:
        return -((math.log(value / peak) / math.log(width)) ** 2)
    return -(((value - peak) / width) ** 2)


@dataclass(frozen=True)
class Gains:
    """What the parameters of `conditional` are worth; of a pair the gain and where its peak is."""

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


class Conditional(Synthetic):
    """A root opens three subspaces; the one with the optimum is on average the worst. Four parameters do nothing."""

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

    def define(self, trial: Suggest) -> dict[str, ParameterValue]:
        """See `Problem`."""
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

    def metrics(self, config: Config) -> Metrics:
        """See `Synthetic`."""
        gains, method = self.gains, config["method"]
        if method == "plain":
            gain = gains.window[0] * bump(config["plain_window"], gains.window[1], 8)
        elif method == "draft":
            gain = gains.draft + gains.rate[0] * bump(config["draft_rate"], gains.rate[1], 10, log=True)
            lost = 0.0 if config["draft_tree"] else gains.tree
            gain += gains.depth[0] * bump(config["draft_depth"], gains.depth[1], 6) - lost
        else:
            gain = gains.lookup + 0.3 * bump(config["lookup_size"], gains.size, 8, log=True)
        shared = 0.1 * bump(config["share"], gains.share, 0.3)
        gain += gains.batch[0] * bump(config["batch"], gains.batch[1], 8, log=True) + shared
        gain += gains.modes[str(config["mode"])]
        return {"output_throughput": gains.level * math.exp(gain)}

    def optima(self) -> Iterable[Config]:
        """Yield the optimum: every factor has its own parameter, and its peak is among the values."""
        yield self.optimum


class CrashHalf(Synthetic):
    """Half of the space crashes, beyond sequences x tokens = EDGE; the score grows towards that edge."""

    name = "crash-half"
    EDGE = 2**17.5
    """The middle of the logarithms' ranges, 2^3..2^10 and 2^8..2^14: by symmetry half of the area is beyond."""
    effective_defaults: Config = MappingProxyType(
        {"seqs": 64, "tokens": 1024, "kind": None, "delay": 0.5, "idle_size": 16, "idle_flag": False}
    )

    def define(self, trial: Suggest) -> dict[str, ParameterValue]:
        """See `Problem`."""
        return {
            "seqs": trial.suggest_int("seqs", 8, 1024, log=True),
            "tokens": trial.suggest_int("tokens", 256, 16384, log=True),
            "kind": trial.suggest_categorical("kind", [None, "fast", "small", "odd"]),
            "delay": trial.suggest_float("delay", 0.0, 1.0),
            "idle_size": trial.suggest_categorical("idle_size", [16, 32, 64]),
            "idle_flag": trial.suggest_categorical("idle_flag", [False, True]),
        }

    def metrics(self, config: Config) -> Metrics | None:
        """See `Synthetic`."""
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
        """Yield, for every number of sequences, the most tokens that do not crash."""
        for seqs in range(8, 1025):
            tokens = min(16384, math.floor(self.EDGE / seqs))
            if tokens >= 256:
                yield {"seqs": seqs, "tokens": tokens, "kind": "fast", "delay": 0.25}


class Serving(Synthetic):
    """Throughput against latency over a batch size, with an SLO that the best throughput breaks."""

    texts = ("output_throughput", "p99_tpot_ms")

    def __init__(self, name: str, slo_ms: float, batch: int, prior: str = "right", misled: bool = False) -> None:
        self.name = name
        self.slo_texts = (f"p99_tpot_ms<{slo_ms:g}",)
        self.effective_defaults = {
            **{"batch": batch, "chunk": 2048, "kernel": None, "graphs": "piecewise", "overlap": True, "interval": 1},
            **{"idle_share": 0.9, "idle_size": 16, "idle_policy": "fcfs"},
        }
        super().__init__(prior, misled)

    def define(self, trial: Suggest) -> dict[str, ParameterValue]:
        """See `Problem`."""
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

    def metrics(self, config: Config) -> Metrics:
        """See `Synthetic`: a step takes a fixed time and one that grows with the batch."""
        batch = config["batch"]
        assert isinstance(batch, int)
        fixed = 6.0 * {"none": 2.5, "piecewise": 1.3, "full": 1.0}[str(config["graphs"])]
        fixed *= 1.0 if config["overlap"] else 1.5
        each = 0.15 * {"None": 1.0, "a": 0.8, "b": 1.3}[str(config["kernel"])]
        step = (fixed + each * batch) * math.exp(-0.1 * bump(config["chunk"], 4096, 8, log=True))
        tail = 1.1 * math.exp(-0.05 * bump(config["interval"], 1, 16, log=True))
        return {"output_throughput": 1000.0 * batch / step, "p99_tpot_ms": step * tail}

    def optima(self) -> Iterable[Config]:
        """Yield every batch size with the best of all that does not depend on it."""
        for batch in range(4, 513):
            yield {"batch": batch, "chunk": 4096, "kernel": "a", "graphs": "full", "overlap": True, "interval": 1}


class Flat(Serving):
    """Nothing matters: the right answer is to keep the defaults."""

    def __init__(self, prior: str = "right", misled: bool = False) -> None:
        super().__init__("flat", 50.0, 64, prior, misled)

    def metrics(self, config: Config) -> Metrics:
        """See `Synthetic`."""
        return {"output_throughput": 3000.0, "p99_tpot_ms": 20.0}

    def optima(self) -> Iterable[Config]:
        """Yield the defaults."""
        yield {}


def _misled(prior: str) -> Synthetic:
    problem = Conditional(prior, misled=True)
    problem.name = "conditional-misled"
    return problem


class Unrelated(Conditional):
    """The same, with predictions that have nothing to do with it: drawn at random, a third said to fail."""

    name = "conditional-unrelated"
    wrong = "unrelated"
    unrelated = True

    def __init__(self, prior: str = "right") -> None:
        super().__init__(prior, misled=True)


SYNTHETIC: dict[str, Callable[[str], Problem]] = {
    "conditional": Conditional,
    "conditional-misled": _misled,
    "conditional-unrelated": Unrelated,
    "crash-half": CrashHalf,
    "infeasible-defaults": lambda prior: Serving("infeasible-defaults", 12.0, 128, prior),
    "flat": Flat,
    "two-objectives": lambda prior: Serving("two-objectives", 60.0, 64, prior),
}
"""Each problem by its name, made with the prior that is wanted."""
