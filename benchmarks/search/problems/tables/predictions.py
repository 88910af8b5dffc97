"""The simulator's predictions for the configurations of recorded tables."""

import json
import math
from dataclasses import replace

from benchmarks.search.problems.problem import MetricsByName
from benchmarks.search.problems.simulated.study import SIMULATED_STUDIES, SimulatedStudy
from benchmarks.search.problems.tables.problem import Predict
from benchmarks.simulator.rows import H200_PACKAGES, Row, h200, predict
from records.trials import Config
from search_spaces import Parameter, ParameterValue, SpaceError
from tuner.engines.simulator.memory import StartFailed
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.precision import ConfigRefused

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
STUDIES_OF_TABLES = {"h200-study": "sim-h200", "h200-7b-study": "sim-h200-7b"}
"""Tables of studies on a card that can be simulated, with the simulated study of the same search space."""
COMPILATION = {"cudagraph_mode": "cudagraph_mode", "capture_max": "max_cudagraph_capture_size"}


def predictor(name: str) -> Predict | None:
    """Return the prior of a table; None if its card cannot be simulated."""
    if name in STUDIES_OF_TABLES:
        study = replace(SIMULATED_STUDIES[STUDIES_OF_TABLES[name]](), packages=H200_PACKAGES)
        return lambda config: _predict_by_study(study, config)
    rows = [row for row in h200() if row.group == name.replace("-", "_")]
    if not rows:
        return None
    defaults = next(row for row in rows if row.id.endswith("-default"))
    return lambda config: _predict_by_flags(defaults, config)


def flags_of(config: Config) -> tuple[str, ...]:
    """Return the flags of `vllm serve` for a configuration of `h200_a05.jsonl` or `h200_b7.jsonl`."""
    words: list[str] = []
    for name, flag in FLAGS.items():
        if config.get(name) is not None:
            words += [flag, str(config[name])]
    for name, flag in SWITCHES.items():
        if config.get(name) is not None:
            words.append(f"--{flag}" if config[name] else f"--no-{flag}")
    compilation = {key: config[name] for name, key in COMPILATION.items() if config.get(name) is not None}
    return (*words, "--compilation-config", json.dumps(compilation)) if compilation else tuple(words)


def _predict_by_flags(defaults: Row, config: Config) -> MetricsByName | None:
    try:
        return predict(replace(defaults, args=(*defaults.args, *flags_of(config))))
    except (ConfigRefused, StartFailed):
        return None


def _predict_by_study(study: SimulatedStudy, config: Config) -> MetricsByName | None:
    parameters = {parameter.name: parameter for parameter in study.spec.space.parameters}
    in_space = {
        name: _nearest(parameters[name], value)
        for name, value in config.items()
        if value is not None and name in parameters
    }
    try:
        return study.run(in_space, parameters_of(study.card.key)).metrics
    except SpaceError:
        return None


def _nearest(parameter: Parameter, value: ParameterValue) -> ParameterValue:
    """Return the nearest number that the parameter can take; other values are returned unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    numbers = [each for each in parameter.values if isinstance(each, int | float) and not isinstance(each, bool)]
    if numbers:
        return min(numbers, key=lambda each: abs(math.log(each + 1) - math.log(value + 1)))
    low, step = parameter.spec.low, parameter.spec.step
    if parameter.kind != "float" or low is None or step is None:
        return value
    return low + step * round((value - low) / step)
