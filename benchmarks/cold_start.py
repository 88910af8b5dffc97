"""Does the first trial of a machine measure what later ones do, and did it before the warm-up had windows?

    python -m benchmarks.cold_start --vllm VENV/bin/vllm MODEL_FOLDER [--pairs 6] [--load closed|mixed|both]
        [--env VLLM_CPU_KVCACHE_SPACE=1] [--json FILE]

Each pair is a trial with empty caches of compiled kernels and one with the caches that a trial before it left. The
cold one comes first in every other pair, so that a machine that gets slower favors neither. Pairs with the former
warm-up (one run, every benchmark counts) and with the present one alternate. The servers compile with PyTorch's own
torch.compile (`--compilation-config '{"mode": 1}'`), which also compiles during requests on a CPU.

The ratio is cold / warm, the geometric mean over the pairs with its 95 % interval (Student's t on logarithms).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.command_line import add_vllm_options, documented_parser, environment_variables, write_json
from benchmarks.text_table import MISSING, number_text, print_table
from records.trials import TrialKind, TrialOutcome
from tuner.engines.base import EngineSettings
from tuner.engines.server.running_server import RunningServer
from tuner.engines.vllm.engine import VllmEngine
from tuner.engines.vllm.toolbox import own_environment
from tuner.scoring.compare import logarithms, paired_ratio, residual_noise
from tuner.specs import LaunchSpec, ModelRef, TrialSpec
from tuner.trial.pipeline import run_trial
from tuner.workloads.spec import ClosedLoop, SingleWorkload
from tuner.workloads.traffic import Traffic

METRICS = ("output_throughput", "mean_e2el_ms", "p99_ttft_ms", "p99_tpot_ms")
SERVER = ("--load-format", "dummy", "--max-model-len", "1024", "--generation-config", "vllm")
COMPILED = ("--compilation-config", '{"mode": 1}')
LOADS: dict[str, SingleWorkload] = {
    "closed": ClosedLoop(max_concurrency=8, num_prompts=120, input_len=128, output_len=64),
    "mixed": Traffic.model_validate(
        {
            "arrivals": {"process": "poisson", "rate": 4},
            "requests": 120,
            "classes": {
                "chat": {"weight": 3, "input": {"uniform": [20, 200]}, "output": {"uniform": [8, 32]}},
                "documents": {"weight": 1, "input": {"uniform": [300, 700]}, "output": 8},
            },
        }
    ),
}
WARM_UPS = {"before": (1, 0), "after": (RunningServer.most_windows, RunningServer.most_again)}
"""The windows of the warm-up and the repetitions of a benchmark, at most; `before` is the former warm-up."""

COLD, WARM = 1, 0
CAPTION = (
    "First trial with empty caches of compiled kernels relative to the next one with full caches, and the medians of "
    "what their warm-ups took; 1 is no difference"
)

Outcomes = dict[tuple[str, str, int], list[TrialOutcome]]
"""By load, warm-up, and cold or warm: one for each pair."""


class Trials:
    """The trials of one model folder."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._folder, self._home = folder, folder / "home"
        self._model = ModelRef(*[str(arguments.model.resolve())] * 3)
        self._variables = environment_variables(arguments.env)
        self._engine = VllmEngine(EngineSettings("vllm", arguments.vllm, self._home))
        self._count = 0

    def pair(self, name: str, warm_up: str, *, warm_first: bool) -> tuple[TrialOutcome, TrialOutcome]:
        """Return the outcomes with empty caches and with full ones; a trial ran before if the warm one comes first."""
        RunningServer.most_windows, RunningServer.most_again = WARM_UPS[warm_up]
        if warm_first:
            warm = self._trial(LOADS[name])
            return self._cold_trial(LOADS[name]), warm
        return self._cold_trial(LOADS[name]), self._trial(LOADS[name])

    def _cold_trial(self, workload: SingleWorkload) -> TrialOutcome:
        own = own_environment(self._home, scratch=self._folder)
        caches = [Path(value) for variable, value in own.items() if variable.endswith(("CACHE_ROOT", "CACHE_DIR"))]
        for cache in (*caches, self._home / "vllm" / "inductor-temporary"):
            shutil.rmtree(cache, ignore_errors=True)
        return self._trial(workload)

    def _trial(self, workload: SingleWorkload) -> TrialOutcome:
        self._count += 1
        launch = LaunchSpec(self._model, COMPILED, SERVER, self._variables)
        artifacts = self._folder / str(self._count)
        spec = TrialSpec("cold start", self._count, 0, 1, TrialKind.SEARCH, {}, launch, workload, 1, artifacts)
        outcome = run_trial(self._engine, spec, threading.Event(), worker="w0", device="cpu")
        if outcome.failure is not None:
            raise SystemExit(f"the trial failed: {outcome.failure.message}")
        return outcome

    def close(self) -> None:
        """Stop what runs."""
        self._engine.close()


def print_ratios(outcomes: Outcomes) -> None:
    """Print the ratios of each load and warm-up."""
    rows = []
    for name, warm_up in dict.fromkeys(key[:2] for key in outcomes):
        cold, warm = sides = [outcomes[name, warm_up, side] for side in (COLD, WARM)]
        ratios = [_ratio_text(cold, warm, metric) for metric in METRICS]
        facts = ["/".join(_middle(side, fact) for side in sides) for fact in ("warmup_windows", "benchmarks_again")]
        seconds = "/".join(f"{sorted(each.timings['warmup'] for each in side)[len(side) // 2]:.1f}" for side in sides)
        rows.append([f"{name}, {warm_up}", *ratios, *facts, seconds])
    header = ("load, warm-up", *METRICS, "windows", "again", "warm-up s")
    print_table(f"{CAPTION} ({len(sides[0])} pairs; cold/warm in the last three columns)", header, rows)


def _ratio_text(cold: list[TrialOutcome], warm: list[TrialOutcome], metric: str) -> str:
    logs = [logarithms(each.metric(metric) for each in side) for side in (cold, warm)]
    if logs[0] is None or logs[1] is None:
        return MISSING
    differences = [one - other for one, other in zip(logs[0], logs[1], strict=True)]
    found = paired_ratio(differences, residual_noise([[logs[0], logs[1]]]), 1)
    interval = "" if found.low is None else f" [{number_text(found.low, 3)}, {number_text(found.high, 3)}]"
    return f"{found.ratio:.3f}{interval}"


def _middle(side: list[TrialOutcome], fact: str) -> str:
    values = sorted(getattr(each.server, fact) or 0 for each in side)
    return str(values[len(values) // 2])


def _plain(outcomes: Outcomes) -> list[dict[str, Any]]:
    return [
        {
            **{"load": name, "warm_up": warm_up, "cold": side == COLD, "pair": pair},
            **{metric: outcome.metric(metric) for metric in METRICS},
            **{
                fact: getattr(outcome.server, fact) for fact in ("warmup_windows", "warmup_settled", "benchmarks_again")
            },
            "seconds": dict(outcome.timings),
        }
        for (name, warm_up, side), each in outcomes.items()
        for pair, outcome in enumerate(each)
    ]


def main() -> None:
    """Run the pairs and print the ratios after each round."""
    parser = documented_parser(__doc__)
    add_vllm_options(parser)
    parser.add_argument("--pairs", type=int, default=6, help="pairs of each load and warm-up [6]")
    parser.add_argument("--load", choices=(*LOADS, "both"), default="closed")
    parser.add_argument("--json", type=Path, help="a file for every trial's figures")
    arguments = parser.parse_args()
    names = list(LOADS) if arguments.load == "both" else [arguments.load]
    outcomes: Outcomes = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(arguments, Path(folder))
        try:
            for number in range(arguments.pairs):
                for name in names:
                    for warm_up in WARM_UPS:
                        pair = trials.pair(name, warm_up, warm_first=number % 2 == 1)
                        for side, outcome in zip((COLD, WARM), pair, strict=True):
                            outcomes[name, warm_up, side].append(outcome)
                print_ratios(outcomes)
                write_json(arguments.json, _plain(outcomes))
        finally:
            trials.close()


if __name__ == "__main__":
    main()
