"""SLOs that a study can hardly meet: bounds below what one request alone is predicted to need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from search_spaces import SpaceError
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.config.precision import ConfigRefused
from tuner.engines.simulator.memory.budget import StartFailed
from tuner.errors import TunerError
from tuner.study.prior.simulator_prior import simulator_of
from tuner.study.specification.spec import StudySpec
from tuner.workloads.spec import ClosedLoop

LEAST_SHARE = 0.5
"""Other flags, and errors of the prediction, may halve what the defaults are predicted to need; more is unlikely."""

_LATENCIES = ("_ttft_ms", "_tpot_ms", "_itl_ms", "_e2el_ms")


def hardly_met_slos(spec: StudySpec, engine: EngineInfo) -> Iterator[str]:
    """Yield a line for each upper bound on a latency that is far below that of one request on an idle server.

    Nothing is yielded where the simulator does not predict the study, as on a CPU.

    Args:
        spec: the study.
        engine: that runs it.
    """
    load = ClosedLoop(
        max_concurrency=1, num_prompts=2, input_len=spec.workload.input_len, output_len=spec.workload.output_len
    )
    simulator, shape = simulator_of(replace(spec, workload=load), engine), spec.space.context.model
    if simulator is None or shape is None:
        return
    try:
        metrics = simulator.metrics(spec.server.arguments, spec.server.environment, shape) or {}
    except (TunerError, SpaceError, ConfigRefused, StartFailed, ArithmeticError, LookupError, ValueError):
        return  # a warning is worth no failed study
    for slo in spec.goals.slos:
        name = slo.metric.rpartition(".")[2]
        idle = metrics.get(name) if name.endswith(_LATENCIES) and not name.startswith("std") else None
        if idle is not None and slo.threshold < LEAST_SHARE * idle:
            yield (
                f"SLO {slo} can hardly be met: one request alone, with the defaults, is predicted to have {idle:.4g}; "
                "Ctrl-C, and give a higher bound"
            )
