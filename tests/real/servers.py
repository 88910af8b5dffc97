"""Servers of a real vLLM with the made model, as a trial starts them."""

import threading
from pathlib import Path

from records.trials import TrialKind
from tuner.engines.vllm.engine import VllmEngine, VllmServer
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.workloads.traffic import Traffic

NEVER = threading.Event()


def started(engine: VllmEngine, model: Path, traffic: Traffic, folder: Path, *flags: str) -> VllmServer:
    """Start a server with dummy weights and these flags; return it after the warm-up."""
    reference = ModelRef(str(model), str(model), "tiny model")
    base = ("--load-format", "dummy", "--max-model-len", "512", "--enforce-eager", "--generation-config", "vllm")
    launch = LaunchSpec(reference, flags, base, {"VLLM_CPU_KVCACHE_SPACE": "1"})
    spec = TrialSpec("traffic", 0, 0, 1, TrialKind.SEARCH, {}, launch, traffic, 1, folder)
    server = engine.launch(spec, spec.limits)
    try:
        server.wait_ready(NEVER)
        server.warm_up(traffic, NEVER)
    except BaseException:
        server.stop()
        raise
    return server
