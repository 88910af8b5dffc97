"""Several engines of one study on one worker: each trial runs on the one that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from storage.records import Failure
from tuner.clock import Clock
from tuner.engines.base import Engine, EngineInfo, Server
from tuner.specs import Limits, TrialSpec


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
        """The clock of its trials."""
        return self._default.clock

    def info(self) -> EngineInfo:
        """Return the installation of the default engine, with those of the others."""
        first, *others = (each.info() for each in self._engines.values())
        return replace(first, others=tuple(others))

    def check(self, spec: TrialSpec) -> Failure | None:
        """Return why the trial's engine refuses its configuration; None if it does not."""
        return self._engine(spec).check(spec)

    def launch(self, spec: TrialSpec, limits: Limits) -> Server:
        """Start a server of the trial's engine; see `Engine`."""
        return self._engine(spec).launch(spec, limits)

    def _engine(self, spec: TrialSpec) -> Engine:
        name = spec.launch.engine
        return self._default if name is None else self._engines[name]

    def close(self) -> None:
        """Close every engine."""
        for engine in self._engines.values():
            engine.close()
