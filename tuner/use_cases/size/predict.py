"""Predict what one server of a shape holds: its flags, its rate, and the rate at the pessimistic end of the error band.

A shape starts with vLLM's defaults. A recipe of the search space is added where the server then holds a rate that is
higher by `LEAST_GAIN`, in the order of the recipes' file; each costs one run where it does not. There is no search over
flags: `tuner optimize` does that for the shape that is chosen.

On a slow host, the pessimistic rate meets the SLOs if each latency is higher than predicted by its error band, and if
the throughput is lower by its own. Where no rows were measured, the widest documented band counts, and is called
assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from records.trials import Config
from search_spaces import Context, ModelShape, ResolvedSpace, SpaceError, load_space
from search_spaces.schema import VLLM
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.engine import SimulatedEngine
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import ErrorBands, documented_bands
from tuner.engines.simulator.precision import ConfigRefused
from tuner.engines.simulator.prediction import Platform, build_server
from tuner.errors import TunerError
from tuner.scoring.goals import Goals, Slo
from tuner.study.specification.resolve_workload import facts_of_load
from tuner.trial.capacity import find_capacity
from tuner.use_cases.size.rate import HeldRate, RateSearch, simulated_runner, timed
from tuner.use_cases.size.shapes import SHAPE_PARAMETERS, Shape
from tuner.workloads.request_class import read_class_slo
from tuner.workloads.traffic import Traffic

LATENCIES = ("p95_ttft_ms", "p95_tpot_ms", "p95_e2el_ms")
"""Shown for each shape, over all requests of the stable middle."""

LEAST_GAIN = 1.05
"""A recipe is added if the server then holds this multiple of the rate."""
SLOW_HOST = 0.76
"""Speed of a slow host, relative to the catalogue's `host_speed`: one host of an H200 had 0.5, its entry is 0.66."""
_LOWER = 1.25
"""Factor of the first steps down to the pessimistic rate."""
_IDLE_RATE = 0.01
"""Requests/s at which each finds an idle server."""
_BAND_OF = {"ttft": "p99_ttft_ms", "tpot": "p99_tpot_ms", "itl": "p99_tpot_ms"}
_THROUGHPUT = "output_throughput"


@dataclass(frozen=True)
class Asked:
    """What is asked of every server: model, load of one server, SLOs, flags and variables."""

    model: ModelShape
    load: Traffic
    goals: Goals
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    keep_answers: bool


@dataclass(frozen=True)
class Prediction:
    """What one server of a shape is predicted to hold; rates are in requests/s.

    Attributes:
        platform: card, version of vLLM and number of GPUs.
        shape: how the GPUs share the model.
        arguments, environment: flags and variables of the server beside those of every server.
        recipes: names of the recipes among them.
        changes_answers: those of the recipes that may change the model's answers.
        held: None where no rate meets the SLOs, or the server does not start.
        pessimistic: the rate at that end of the error band; None: no rate.
        band: relative errors by metric.
        band_assumed: why there is no band of measured rows; None: there is.
        residence_s: of a request on the idle server.
        failure: why the server does not start.
        lacks_memory: whether it needs more GPUs, or larger ones.
    """

    platform: Platform
    shape: Shape
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    recipes: tuple[str, ...] = ()
    changes_answers: tuple[str, ...] = ()
    held: HeldRate | None = None
    pessimistic: float | None = None
    band: Mapping[str, float] | None = None
    band_assumed: str | None = None
    residence_s: float = 0.0
    failure: str | None = None
    lacks_memory: bool = False


def predict(asked: Asked, platform: Platform, shape: Shape, first: float) -> Prediction:
    """Return the prediction of a shape on a platform; the search begins at a first rate."""
    flags = _Flags(asked, replace(platform, gpus=shape.gpus), shape)
    found = flags.best(first)
    if found is None:
        return Prediction(flags.platform, shape, failure=flags.failure, lacks_memory=flags.lacks_memory)
    recipes, config, search, held = found
    band, assumed = band_of(flags.server(config).error_bands)
    argv, environment = flags.rendered(config)
    return Prediction(
        platform=flags.platform,
        shape=shape,
        arguments=(*shape.arguments, *argv),
        environment=environment,
        recipes=recipes,
        changes_answers=flags.changing(config),
        held=held,
        pessimistic=None if held is None else pessimistic(flags.on_a_slow_host(config, search), held, band),
        band=band,
        band_assumed=assumed,
        residence_s=search.residence_s,
    )


_Found = tuple[tuple[str, ...], Config, RateSearch, HeldRate | None]


class _Flags:
    """The recipes of one shape."""

    def __init__(self, asked: Asked, platform: Platform, shape: Shape) -> None:
        self.platform = platform
        self._asked, self._shape = asked, shape
        self.failure: str | None = None
        self.lacks_memory = False
        self._space = self._resolved(None)

    def best(self, first: float) -> _Found | None:
        """Return recipes, configuration and rate of the best server; None if none starts."""
        names: tuple[str, ...] = ()
        config: Config = {}
        search = self._search(config)
        rate = None if search is None else search.rough(first)
        self._space = self._resolved(None if search is None or rate is None else search.in_flight(rate))
        for name, recipe in self._recipes():
            together = self._completed({**config, **recipe})
            other = None if together is None else self._search(together)
            if together is None or other is None:
                continue
            better = other.rough(first) if rate is None else other.climbed(LEAST_GAIN * rate)
            if better is not None or search is None:
                names, config, search, rate = (*names, name), together, other, better
        return None if search is None else (names, config, search, None if rate is None else search.held(rate))

    def server(self, config: Config, platform: Platform | None = None) -> ConfiguredServer:
        """Return the server of a configuration, also on another platform."""
        argv, environment = self.rendered(config)
        return server_of(self._asked, platform or self.platform, (*self._shape.arguments, *argv), environment)

    def on_a_slow_host(self, config: Config, search: RateSearch) -> RateSearch:
        """Return the search for the rate of a configuration on a slow host."""
        card = self.platform.card
        slow = replace(card, host_speed=SLOW_HOST * (card.host_speed or 1.0))
        server = self.server(config, replace(self.platform, card=slow))
        return replace(search, run=simulated_runner(server, self._asked.goals.slos), _done={})

    def rendered(self, config: Config) -> tuple[tuple[str, ...], Mapping[str, str]]:
        """Return the flags and variables of a configuration."""
        found = self._space.render(config)
        return tuple(found.argv), found.environment

    def changing(self, config: Config) -> tuple[str, ...]:
        """Return the parameters of a configuration that may change the model's answers."""
        return tuple(each.name for each in self._space.parameters if each.name in config and each.spec.changes_answers)

    def _search(self, config: Config) -> RateSearch | None:
        """Return the search for the rate of a configuration; None if its server does not start."""
        asked = self._asked
        try:
            run = simulated_runner(self.server(config), asked.goals.slos)
            idle_s = 16 * asked.load.requests_per_arrival / _IDLE_RATE
            idle = run(asked.load.at_rate(_IDLE_RATE).model_copy(update={"duration_s": idle_s}), 0)
        except (ConfigRefused, StartFailed, TunerError) as error:
            if self.failure is None:
                self.failure = str(error)
                self.lacks_memory = isinstance(error, StartFailed) and error.kind.lacks_memory
            return None
        return RateSearch(run, asked.load, asked.goals.slos, (idle.in_flight or 0.0) / _IDLE_RATE)

    def _recipes(self) -> Iterator[tuple[str, Config]]:
        for name, reason in self._space.recipes.items():
            config = self._space.named[name].config
            if reason is None and not SHAPE_PARAMETERS & {*config}:
                yield name, config

    def _completed(self, config: Config) -> Config | None:
        """Return a configuration with what its parameters imply; None if it breaks a rule."""
        try:
            whole = self._space.complete(config)
        except SpaceError:
            return None
        return None if self._space.violations(whole) else whole

    def _resolved(self, in_flight: float | None) -> ResolvedSpace:
        """Return vLLM's search space for the shape; requests in work decide which recipes are tried."""
        asked, platform = self._asked, self.platform
        facts = facts_of_load(asked.load, asked.goals)
        context = Context(
            model=asked.model,
            gpus=platform.gpus,
            base_argv=(*asked.arguments, *self._shape.arguments),
            **SimulatedEngine(platform.card, ".".join(map(str, platform.version))).facts(),
            **{**facts, "concurrency": None if in_flight is None else max(1, round(in_flight))},
        )
        return load_space(VLLM).resolve(context, keep_answers=asked.keep_answers)


def server_of(
    asked: Asked, platform: Platform, arguments: Sequence[str], environment: Mapping[str, str]
) -> ConfiguredServer:
    """Return the simulated server with arguments and variables beside those of every server."""
    words = (*asked.arguments, *arguments)
    return build_server(platform, words, {**asked.environment, **environment}, asked.model, 1)


def latencies_at(asked: Asked, found: Prediction, rate: float) -> Mapping[str, float | None]:
    """Return the predicted latencies of a server at a rate below the one that it holds."""
    server = server_of(asked, found.platform, found.arguments, found.environment)
    run = simulated_runner(server, ())(timed(asked.load, rate, found.residence_s), asked.load.seed)
    return {name: run.metrics.get(name) for name in LATENCIES}


def band_of(documented: ErrorBands) -> tuple[Mapping[str, float], str | None]:
    """Return the error band by metric, and why it is an assumed one; None for a documented one."""
    return (documented.errors, None) if documented.errors else (widest_band(), documented.reason)


@cache
def widest_band() -> Mapping[str, float]:
    """Return the largest documented error of each metric."""
    names = (_THROUGHPUT, *dict.fromkeys(_BAND_OF.values()))
    return {name: max(float(entry[name]) for entry in documented_bands()) for name in names}


def pessimistic(search: RateSearch, held: HeldRate, band: Mapping[str, float]) -> float | None:
    """Return the rate that is held at the pessimistic end of the error band; None for none."""
    tighter = replace(
        search,
        load=tighter_load(search.load, band),
        slos=tuple(tighter_slo(slo, band) for slo in search.slos),
        _done={},
    )
    first = held.rate / (1.0 + band.get(_THROUGHPUT, 0.0))
    if tighter.point(first).held:
        return first
    found = find_capacity(tighter.point, first / _LOWER, ratio=LEAST_GAIN, factor=_LOWER).best
    return None if found is None else min(found.rate, first)


def tighter_slo(slo: Slo, band: Mapping[str, float]) -> Slo:
    """Return an SLO that a prediction has to meet so that the server meets the given one with the band's error."""
    kind = slo.metric.removesuffix("_ms").rpartition("_")[2]
    return slo if not slo.op.startswith("<") else replace(slo, threshold=slo.threshold / (1.0 + error_of(kind, band)))


def tighter_load(load: Traffic, band: Mapping[str, float]) -> Traffic:
    """Return traffic whose bounds on single requests are tightened likewise."""
    bounds = {}
    for name, given in load.slo.items():
        kinds = read_class_slo(given).request.bounds_ms
        bounds[name] = {
            key: value / (1.0 + error_of(kind, band))
            if (kind := key.removesuffix("_ms").rpartition("_")[2]) in kinds
            else value
            for key, value in given.items()
        }
    return load.model_copy(update={"slo": bounds})


def error_of(kind: str, band: Mapping[str, float]) -> float:
    """Return the relative error of a latency; that of a whole request is at most the larger one of its parts."""
    if kind == "e2el":
        return max(error_of(each, band) for each in ("ttft", "tpot"))
    return band.get(_BAND_OF.get(kind, ""), 0.0)
