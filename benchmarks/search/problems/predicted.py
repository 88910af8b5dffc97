"""What the simulator predicts of any configuration that the parameters of a recorded table can make."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from benchmarks.search.problems.problem import Config
from benchmarks.search.problems.rows import Metrics
from benchmarks.search.problems.simulated import RIGS, Rig
from benchmarks.search.problems.tables import Predict
from benchmarks.simulator.rows import H200_PACKAGES, Row, h200, predict
from search_spaces import Parameter, ParameterValue, SpaceError
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.memory.budget import StartFailed
from tuner.engines.simulator.parameters import parameters_of

FLAGS = {
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_model_len": "--max-model-len",
    "block_size": "--block-size",
    "stream_interval": "--stream-interval",
    "api_server_count": "--api-server-count",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "attention_backend": "--attention-backend",
    "optimization_level": "-O",
}
SWITCHES = {"prefix_caching": "enable-prefix-caching", "async_scheduling": "async-scheduling"}
STUDIES = {"h200-study": "sim-h200", "h200-7b-study": "sim-h200-7b"}
"""This project's own studies on a card that is simulated, and what was searched in them."""
COMPILATION = {"cudagraph_mode": "cudagraph_mode", "capture_max": "max_cudagraph_capture_size"}


def predictor(name: str) -> Predict | None:
    """Return what predicts a table's configurations; None where the simulator has no such card."""
    if name in STUDIES:
        rig = replace(RIGS[STUDIES[name]](), packages=H200_PACKAGES)
        return lambda config: _by_rig(rig, config)
    rows = [row for row in h200() if row.group == name.replace("-", "_")]
    if not rows:
        return None
    usual = next(row for row in rows if row.id.endswith("-default"))
    return lambda config: _by_flags(usual, config)


def flags_of(config: Config) -> tuple[str, ...]:
    """Return the flags that a configuration of `h200_a05.jsonl` or `h200_b7.jsonl` was measured with."""
    words: list[str] = []
    for name, flag in FLAGS.items():
        if config.get(name) is not None:
            words += [flag, str(config[name])]
    for name, flag in SWITCHES.items():
        if config.get(name) is not None:
            words.append(f"--{flag}" if config[name] else f"--no-{flag}")
    compilation = {key: config[name] for name, key in COMPILATION.items() if config.get(name) is not None}
    return (*words, "--compilation-config", json.dumps(compilation)) if compilation else tuple(words)


def _by_flags(usual: Row, config: Config) -> Metrics | None:
    try:
        return predict(replace(usual, args=(*usual.args, *flags_of(config))))
    except (ConfigRefused, StartFailed):
        return None


def _by_rig(rig: Rig, config: Config) -> Metrics | None:
    known = {parameter.name: parameter for parameter in rig.spec.space.parameters}
    fitting = {
        name: _nearest(known[name], value) for name, value in config.items() if value is not None and name in known
    }
    try:
        return rig.run(fitting, parameters_of(rig.card.key)).metrics
    except SpaceError:
        return None


def _nearest(parameter: Parameter, value: ParameterValue) -> ParameterValue:
    """Return a number as the space has it: one of its choices, or a whole number of steps."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    numbers = [each for each in parameter.values if isinstance(each, int | float) and not isinstance(each, bool)]
    if numbers:
        return min(numbers, key=lambda each: abs(math.log(each + 1) - math.log(value + 1)))
    low, step = parameter.spec.low, parameter.spec.step
    if parameter.kind != "float" or low is None or step is None:
        return value
    return low + step * round((value - low) / step)
