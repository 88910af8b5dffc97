"""How long does one suggestion take? Ask and tell with up to 300 trials in SQLite, in the T4 preset's search space.

    python -m benchmarks.search.ask_latency [--samplers residual tpe] [--trials 300] [--no-predictions] [--json FILE]

No server is started: a formula of the parameters gives the outcome, and one configuration in twelve fails. The
predictions are the simulator's, as in a study of a real card. Times are seconds of processor time. Predictions for the
next suggestion are computed in background threads while a trial runs; if the trial ends sooner, the next suggestion
computes the rest. The public API shows neither the processor time of a thread nor the end of the background work.
"""

import tempfile
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.command_line import documented_parser, write_json
from benchmarks.search.problems.problem import config_key
from benchmarks.text_table import print_table
from records.trials import Config, Provenance, Verdict
from search_spaces import ParameterValue, hardware_named
from storage import normalise_url
from tuner.engines.base import EngineInfo
from tuner.engines.simulator.flags import SIMULATED_PACKAGES, flag_names
from tuner.scoring.goals import FAILED, FAILED_VIOLATION
from tuner.settings.study import RESIDUAL, TPE, StudySettings
from tuner.study.optuna_study import OptunaStudy
from tuner.study.simulator_prior import simulator_prior
from tuner.study.specification.builder import build_spec
from tuner.study.specification.plan import plan_study

BLOCKS = ((1, 10), (11, 30), (31, 60), (61, 100), (101, 160), (161, 300))
"""First and last trial of each row of the table."""
FAILS_ONE_IN = 12
EFFECT_DEVIATION = 0.05
"""Standard deviation of the logarithm of one parameter's effect on the speed."""
LATENCY_CAPTION = (
    "Processor time of one ask and tell by the number of trials before it, in ms (lower is better), and of the "
    "background threads beside a trial, in s; n is the number of trials"
)


@dataclass
class Latency:
    """Seconds of processor time of one sampler.

    Attributes:
        prepared_s: of the predictions before the first suggestion.
        ask_s: of each ask with its tell, in the thread that asks.
        beside_s: beside each trial, in all other threads.
    """

    prepared_s: float = 0.0
    ask_s: list[float] = field(default_factory=list)
    beside_s: list[float] = field(default_factory=list)


def made_up_verdict(config: Config, metrics: tuple[str, ...]) -> Verdict:
    """Return an outcome that each parameter affects a little, the same in every process."""
    effects = [np.random.default_rng(zlib.crc32(f"{name} {value}".encode())).normal() for name, value in config.items()]
    if zlib.crc32(config_key(config).encode()) % FAILS_ONE_IN == 0:
        return Verdict({}, {FAILED: FAILED_VIOLATION}, None)
    speed = float(np.exp(EFFECT_DEVIATION * sum(effects)))
    values: dict[str, float | None] = {
        name: 3000 * speed if name == "output_throughput" else 20 / speed for name in metrics
    }
    return Verdict(values, {"p99_tpot_ms<25": 20 / speed / 25 - 1}, speed)


def time_sampler(sampler: str, trials: int, predicted: bool, folder: Path) -> Latency:
    """Return the times of one sampler.

    Args:
        sampler: `residual` or `tpe`.
        trials: number of trials.
        predicted: whether the residual sampler has the simulator prior.
        folder: for the database.
    """
    info = EngineInfo("vllm", "0.15.1", None, flag_names(), Provenance.MEASURED, SIMULATED_PACKAGES)
    spec = build_spec(plan_study(StudySettings(search_load=1.0), simulated=True), info, hardware_named("t4"), folder)
    prior = simulator_prior(spec, info) if predicted and sampler == RESIDUAL else None
    begun = time.process_time()
    url = normalise_url(str(folder / f"{sampler}.db"))
    study = OptunaStudy(url, sampler, spec.space, spec.goals.objectives, 0, sampler, prior)
    metrics = tuple(objective.metric for objective in spec.goals.objectives)
    defaults: dict[str, ParameterValue] = {}
    suggestion = study.ask_fixed(defaults, spec.space.engine_defaults())
    study.tell(suggestion.number, made_up_verdict(defaults, metrics))
    study.wait_for_predictions()
    latency = Latency(prepared_s=time.process_time() - begun)
    for _ in range(trials):
        process_begun, thread_begun = time.process_time(), time.thread_time()
        suggestion = study.ask()
        study.wait_for_predictions()
        study.tell(suggestion.number, made_up_verdict(suggestion.config, metrics))
        latency.ask_s.append(time.thread_time() - thread_begun)
        latency.beside_s.append(time.process_time() - process_begun - latency.ask_s[-1])
    return latency


def latency_rows(sampler: str, latency: Latency) -> list[list[str]]:
    """Return a row of the table for each block of trials."""
    rows = []
    for first, last in BLOCKS:
        asks, beside = latency.ask_s[first - 1 : last], latency.beside_s[first - 1 : last]
        if asks:
            median, high = np.percentile(asks, [50, 95])
            times = [f"{1000 * median:.0f}", f"{1000 * high:.0f}", f"{np.median(beside):.2f}"]
            rows.append([sampler, f"{first} to {last}", str(len(asks)), *times])
    return rows


def time_suggestions() -> None:
    """Time the samplers and print the table."""
    parser = documented_parser(__doc__)
    parser.add_argument("--samplers", nargs="+", choices=(RESIDUAL, TPE), default=[RESIDUAL, TPE])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--no-predictions", action="store_true", help="the residual sampler has no prior")
    parser.add_argument("--json", type=Path, help="write every time to this file")
    arguments = parser.parse_args()
    latencies = {}
    for sampler in arguments.samplers:
        with tempfile.TemporaryDirectory() as folder:
            latencies[sampler] = time_sampler(sampler, arguments.trials, not arguments.no_predictions, Path(folder))
        print(f"{sampler}: {latencies[sampler].prepared_s:.1f} s before the first suggestion", flush=True)
    rows = [row for sampler, latency in latencies.items() for row in latency_rows(sampler, latency)]
    print_table(LATENCY_CAPTION, ["sampler", "trials", "n", "ask, median", "ask, p95", "beside, median"], rows)
    write_json(arguments.json, {sampler: asdict(latency) for sampler, latency in latencies.items()})


if __name__ == "__main__":
    time_suggestions()
