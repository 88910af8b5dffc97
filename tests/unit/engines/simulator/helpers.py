"""Short ways to a simulated server in tests."""

from __future__ import annotations

from dataclasses import replace

from search_spaces import hardware_named, known_models
from tuner.engines.simulator.clients.from_workload import BenchLoad, bench_client
from tuner.engines.simulator.config.serve_config import ServeConfig, resolve
from tuner.engines.simulator.machine import Machine, SimulatedRun
from tuner.engines.simulator.parameters import parameters_of

SMALL = "Qwen/Qwen2.5-0.5B"
PACKAGES = frozenset({"arctic_inference", "flashinfer"})


def config(
    *words: str, card: str = "t4", model: str = SMALL, version: tuple[int, ...] = (0, 15, 1), **env: str
) -> ServeConfig:
    """Return the configuration of a command line."""
    return resolve(words, env, known_models()[model], hardware_named(card), version, PACKAGES)


def machine(*words: str, blocks: int | None = None, card: str = "t4", model: str = SMALL) -> Machine:
    """Return a server, its cache cut down to so many blocks."""
    made = Machine(config(*words, card=card, model=model), parameters_of(card))
    if blocks is not None:
        made.budget = replace(made.budget, blocks=blocks, tokens=blocks * made.config.block_size)
    return made


def run(made: Machine, load: BenchLoad, together: bool = True) -> SimulatedRun:
    """Run a load without noise."""
    return made.run(bench_client(load, 0.0), load.seed, noise=False, together=together)
