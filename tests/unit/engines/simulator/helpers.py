"""Builders of simulated servers for tests."""

from dataclasses import replace

from hypothesis import strategies as st

from benchmarks.simulator.bench_serve import BenchServeWorkload, bench_serve_client
from search_spaces import ModelShape, hardware_named, known_models
from search_spaces.catalogue.layers import Attention, LatentAttention, LayerGroup, Mlp, Recurrent
from tuner.engines.simulator.deployment import ConfiguredServer
from tuner.engines.simulator.metrics import SimulatedRun
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.serve_config import ServeConfig, resolve_serve_config

SMALL = "Qwen/Qwen2.5-0.5B"
PACKAGES = frozenset({"arctic_inference", "flashinfer"})
GREEDY = ("--override-generation-config", '{"temperature": 0}')
SUFFIX = ("--speculative-config", '{"method": "suffix"}')
ARGUMENTS = st.sampled_from(
    [
        (),
        ("--max-num-seqs", "4", "--max-num-batched-tokens", "64"),
        ("--no-enable-prefix-caching", "--enforce-eager"),
        ("--no-async-scheduling", "--block-size", "32"),
        ("--long-prefill-token-threshold", "50"),
        (*GREEDY, *SUFFIX),
        (*SUFFIX, "--max-num-batched-tokens", "64", "--long-prefill-token-threshold", "40"),
        ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}'),
    ]
)


def config(
    *arguments: str, card: str = "t4", model: str = SMALL, version: tuple[int, ...] = (0, 15, 1), **env: str
) -> ServeConfig:
    """Return the configuration of a command line of `vllm serve`."""
    return resolve_serve_config(arguments, env, known_models()[model], hardware_named(card), version, PACKAGES)


def shape(*layers: tuple[int, Attention | LatentAttention | Recurrent]) -> ModelShape:
    """Return a model with these numbers of layers, whose longest context is 262144 tokens."""
    decoder = tuple(LayerGroup(count, mixer, Mlp(1024)) for count, mixer in layers)
    return replace(known_models()[SMALL], decoder=decoder, max_position_embeddings=262144)


def config_of(model: ModelShape, *arguments: str, version: tuple[int, ...] = (0, 25, 1)) -> ServeConfig:
    """Return the configuration of a command line for a model on an H200."""
    return resolve_serve_config(arguments, {}, model, hardware_named("h200"), version, PACKAGES)


def server(*arguments: str, blocks: int | None = None, card: str = "t4", model: str = SMALL) -> ConfiguredServer:
    """Return a server whose KV cache has `blocks` blocks, or as many as fit."""
    made = ConfiguredServer(config(*arguments, card=card, model=model), parameters_of(card))
    if blocks is not None:
        made.budget = replace(made.budget, blocks=blocks, tokens=blocks * made.config.block_size)
    return made


def run(made: ConfiguredServer, workload: BenchServeWorkload, fast_forward: bool = True) -> SimulatedRun:
    return made.run(bench_serve_client(workload, 0.0), workload.seed, noise=False, fast_forward=fast_forward)
