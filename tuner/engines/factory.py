"""Build engines by their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuner.engines.base import Engine, EngineSettings
from tuner.engines.kinds import SIMULATED, kind_of
from tuner.processes.records import reap_orphans

if TYPE_CHECKING:
    from tuner.engines.vllm.nodes.host import RankHost
    from tuner.engines.vllm.nodes.rank import RankNode

HOST = "127.0.0.1"


@dataclass(frozen=True)
class EngineFactory:
    """Builds a worker's engine from its slot; picklable, so that it can be sent to another host.

    `device_per_slot` gives each slot the device of its number, for executors that do not hide the others from a worker.
    """

    settings: EngineSettings
    device_per_slot: bool = False

    def __call__(self, slot: int) -> Engine:
        """Return the engine of the worker in `slot`.

        Raises:
            SettingError: if there is no such engine, or it is not installed.
        """
        if self.settings.others:
            from tuner.engines.several import SeveralEngines

            every = (replace(self.settings, others=()), *self.settings.others)
            return SeveralEngines({each.name: replace(self, settings=each)(slot) for each in every})
        settings = replace(self.settings, device_index=slot) if self.device_per_slot else self.settings
        if settings.name == SIMULATED:
            from tuner.engines.simulator.config.vllm_release import SIMULATED_PACKAGES
            from tuner.engines.simulator.engine import SimulatedEngine

            assert settings.card is not None
            assert settings.version is not None
            return SimulatedEngine(
                settings.card, settings.version, SIMULATED_PACKAGES, settings.warm_start, settings.gpus
            )
        reap_orphans(settings.home / "processes")
        return kind_of(settings.name).build(settings)

    def over_nodes(self, settings: EngineSettings, nodes: Sequence[RankNode] = (), address: str = HOST) -> Engine:
        """Return vLLM of a worker at `address` that has other nodes, too."""
        from tuner.engines.vllm.engine import VllmEngine

        reap_orphans(settings.home / "processes")
        return VllmEngine(settings, nodes, address)

    def rank_host(self, address: str) -> RankHost:
        """Return what runs ranks on another node at `address`.

        Raises:
            UserError: if vLLM is not installed there.
        """
        from tuner.engines.vllm.nodes.host import RankHost

        return RankHost(self.settings, address)
