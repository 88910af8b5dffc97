"""Build engines by their names, and several of them as one engine for one worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from records.trials import Failure
from tuner.clock import Clock
from tuner.engines.base import Engine, EngineInfo, EngineSettings, Server
from tuner.engines.kinds import SIMULATED, kind_of
from tuner.processes.records import reap_orphans
from tuner.specs import Limits, TrialSpec


@dataclass(frozen=True)
class EngineFactory:
    """Builds a worker's engine from its slot; picklable, so that it can be sent to another host.

    `device_per_slot` gives each slot the device of its number, for executors that do not hide the others from a worker.
    """

    settings: EngineSettings
    device_per_slot: bool = False

    def on_gpus(self, first: int, count: int) -> EngineFactory:
        """Return a factory of engines on some GPUs of a worker whose other GPUs may serve other trials.

        Args:
            first: the first GPU's number among those of the worker, a multiple of `count`.
            count: of the GPUs.
        """
        every = (self.settings, *self.settings.others)
        one, *others = (replace(each, gpus=count, device_index=first // count) for each in every)
        return replace(self, settings=replace(one, others=tuple(others)))

    def __call__(self, slot: int) -> Engine:
        """Return the engine of the worker in `slot`.

        Raises:
            SettingError: if there is no such engine, or it is not installed.
        """
        if self.settings.others:
            every = (replace(self.settings, others=()), *self.settings.others)
            return SeveralEngines({each.name: replace(self, settings=each)(slot) for each in every})
        settings = replace(self.settings, device_index=slot) if self.device_per_slot else self.settings
        if settings.name == SIMULATED:
            from tuner.engines.simulator.engine import SimulatedEngine

            assert settings.card is not None
            assert settings.version is not None
            warm, gpus = settings.warm_start, settings.gpus
            return SimulatedEngine(settings.card, settings.version, warm_start=warm, gpus=gpus)
        reap_orphans(settings.home / "processes")
        return kind_of(settings.name).build(settings)


class SeveralEngines:
    """See `Engine`. One server runs at a time, whichever engine it is.

    Args:
        engines: by their names, the default engine first.
    """

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = dict(engines)
        self._default = next(iter(self._engines.values()))

    @property
    def clock(self) -> Clock:
        return self._default.clock

    def info(self) -> EngineInfo:
        """Return the installation of the default engine, with those of the others."""
        first, *others = (each.info() for each in self._engines.values())
        return replace(first, others=tuple(others))

    def check(self, spec: TrialSpec) -> Failure | None:
        return self._engine(spec).check(spec)

    def launch(self, spec: TrialSpec, limits: Limits) -> Server:
        return self._engine(spec).launch(spec, limits)

    def _engine(self, spec: TrialSpec) -> Engine:
        name = spec.launch.engine
        return self._default if name is None else self._engines[name]

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()
