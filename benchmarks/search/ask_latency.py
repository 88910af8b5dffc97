"""How long does the sampler think? Ask and tell in the first target's space, the study in SQLite, up to 300 trials.

(overhead.py has the same of TPE beside a given history.)

    python -m benchmarks.search.ask_latency [--samplers residual tpe] [--trials 300] [--no-predictions] [--json FILE]

Nothing is launched: what comes of a configuration is a formula of its parameters, of which some fail. Predictions are
the simulator's, as in a study of a real card. Printed are seconds of processor time of one ask with its tell, median
and 95th percentile by blocks of trials; what the predictions before the first choice took; and what those beside a
running trial did, of which the next ask would have to make the rest if the trial were over sooner.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from search_spaces import ParameterValue, hardware_named
from storage import normalise_url
from storage.records import Config, Provenance, Verdict
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.config.flags import flag_names
from tuner.engines.simulator.config.vllm_release import SIMULATED_PACKAGES
from tuner.scoring.judge import FAILED, FAILED_VIOLATION
from tuner.study.builder import Request, draft, finish
from tuner.study.optuna_study import OptunaStudy
from tuner.study.simulator_prior import simulator_prior
from tuner.study.spec import RESIDUAL, TPE

BLOCKS = ((1, 10), (11, 30), (31, 60), (61, 100), (101, 160), (161, 300))
FAILS_ONE_IN = 12


def verdict_of(config: Config, metrics: tuple[str, ...]) -> Verdict:
    """Return an outcome that depends on every parameter a little, the same in every process."""
    effects = [np.random.default_rng(zlib.crc32(f"{name} {value}".encode())).normal() for name, value in config.items()]
    if zlib.crc32(json.dumps(dict(config), sort_keys=True).encode()) % FAILS_ONE_IN == 0:
        return Verdict({}, {FAILED: FAILED_VIOLATION}, None)
    speed = float(np.exp(0.05 * sum(effects)))
    values: dict[str, float | None] = {
        name: 3000 * speed if name == "output_throughput" else 20 / speed for name in metrics
    }
    return Verdict(values, {"p99_tpot_ms<25": 20 / speed / 25 - 1}, speed)


def measure(sampler: str, trials: int, predicted: bool, folder: Path) -> tuple[float, list[float], list[float]]:
    """Return the seconds of the predictions before the first choice, of each ask with its tell, and beside each trial.

    Of an ask and its tell those of the thread that asks, beside a trial those of all others.
    """
    info = EngineInfo("vllm", "0.15.1", None, flag_names(), Provenance.MEASURED, SIMULATED_PACKAGES)
    spec = finish(draft(Request(), on_cpu=False, simulated=True), info, hardware_named("t4"), folder)
    prior = simulator_prior(spec, info) if predicted and sampler == RESIDUAL else None
    begun = time.process_time()
    url = normalise_url(str(folder / f"{sampler}.db"))
    learner = OptunaStudy(url, sampler, spec.space, spec.judge.objectives, 0, sampler, prior)
    metrics = tuple(objective.metric for objective in spec.judge.objectives)
    defaults: dict[str, ParameterValue] = {}
    asked = learner.ask_fixed(defaults, spec.space.engine_defaults())
    learner.tell(asked.number, verdict_of(defaults, metrics))
    learner.wait_prepared()
    prepared = time.process_time() - begun
    seconds, beside = [], []
    for _ in range(trials):
        everything, begun = time.process_time(), time.thread_time()
        asked = learner.ask()
        learner.wait_prepared()
        learner.tell(asked.number, verdict_of(asked.config, metrics))
        seconds.append(time.thread_time() - begun)
        beside.append(time.process_time() - everything - seconds[-1])
    return prepared, seconds, beside


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samplers", nargs="+", choices=(RESIDUAL, TPE), default=[RESIDUAL, TPE])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--no-predictions", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {}
    for sampler in arguments.samplers:
        with tempfile.TemporaryDirectory() as folder:
            prepared, seconds, beside = measure(sampler, arguments.trials, not arguments.no_predictions, Path(folder))
        found[sampler] = {"prepared_s": prepared, "ask_s": seconds, "beside_s": beside}
        print(f"{sampler}: {prepared:.1f} s before the first choice")
        for first, last in BLOCKS:
            block, others = seconds[first - 1 : last], beside[first - 1 : last]
            if block:
                median, high = np.percentile(block, [50, 95])
                said = f"{1000 * median:4.0f} ms, p95 {1000 * high:4.0f} ms, beside {np.median(others):.2f} s"
                print(f"  trials {first:>3} to {last:>3}: {said}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
