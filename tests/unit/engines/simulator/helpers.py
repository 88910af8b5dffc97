"""Short ways to a simulated server in tests."""

from __future__ import annotations

from dataclasses import replace

from search_spaces import hardware_named, known_models
from tuner.engines.simulator.clients.bench_serve import BenchServeWorkload, bench_serve_client
from tuner.engines.simulator.config.serve_config import ServeConfig, resolve_serve_config
from tuner.engines.simulator.configured_server import ConfiguredServer, SimulatedRun
from tuner.engines.simulator.parameters import parameters_of

SMALL = "Qwen/Qwen2.5-0.5B"
PACKAGES = frozenset({"arctic_inference", "flashinfer"})


def config(
    *words: str, card: str = "t4", model: str = SMALL, version: tuple[int, ...] = (0, 15, 1), **env: str
) -> ServeConfig:
    """Return the configuration of a command line."""
    return resolve_serve_config(words, env, known_models()[model], hardware_named(card), version, PACKAGES)


def machine(*words: str, blocks: int | None = None, card: str = "t4", model: str = SMALL) -> ConfiguredServer:
    """Return a server, its cache cut down to so many blocks."""
    made = ConfiguredServer(config(*words, card=card, model=model), parameters_of(card))
    if blocks is not None:
        made.budget = replace(made.budget, blocks=blocks, tokens=blocks * made.config.block_size)
    return made


def run(made: ConfiguredServer, load: BenchServeWorkload, together: bool = True) -> SimulatedRun:
    """Run a load without noise."""
    return made.run(bench_serve_client(load, 0.0), load.seed, noise=False, together=together)
