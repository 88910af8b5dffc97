"""How long do `tuner optimize` and `vllm bench sweep serve` take for the same six configurations? No GPU is needed.

    python -m benchmarks.cost.against_sweep --vllm VENV/bin/vllm MODEL_FOLDER [--cache primed|cold]
        [--env VLLM_CPU_KVCACHE_SPACE=1] [--keep FOLDER] [--dry-run] [--json]

The configurations are --max-num-seqs 8, 16 and 32, each with and without --enforce-eager. Each has one scored benchmark
of 40 prompts of 128 + 64 tokens, 10 at a time, with dummy weights. Both commands get the same environment, and each a
compile cache of its own. With a `primed` cache, each first runs the three compiled configurations once, untimed, which
also fills the machine's file cache. With a `cold` cache, both begin with an empty one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.command_line import add_vllm_options, documented_parser, exit_on_sigterm
from benchmarks.cost.six_servers import (
    COMPILED,
    SIX,
    CommandCost,
    ConfigCost,
    SharedSetup,
    run_sweep,
    run_tuner,
    sweep_command,
    tuner_command,
)
from benchmarks.text_table import number_text, print_table
from tuner.engines.vllm.installation import find_executable

RATIO_TARGET = 0.8
DEFAULT_VARIABLES = ("VLLM_CPU_KVCACHE_SPACE=1",)
DRY_RUN_PORT = 8000
SIDES = ("sweep", "tuner")
SWEEP_CAPTION = (
    "Seconds until a server is ready, seconds of its benchmark and output tokens/s, by command (fewer seconds at equal "
    "throughput are better); n = 1 run of each configuration"
)


def sweep_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = documented_parser(__doc__)
    add_vllm_options(parser)
    parser.add_argument("--cache", choices=("primed", "cold"), default="primed", help="the compile caches [primed]")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for logs and results, not deleted")
    parser.add_argument("--dry-run", action="store_true", help="print the two commands and run nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser.parse_args()


def compare_commands() -> None:
    """Run both commands and print their costs."""
    arguments = sweep_arguments()
    exit_on_sigterm()
    with ExitStack() as stack:
        if arguments.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuner-sweep-")))
        else:
            folder = arguments.keep.resolve()
            folder.mkdir(parents=True)
        variables = tuple(arguments.env or DEFAULT_VARIABLES)
        setup = SharedSetup(find_executable(arguments.vllm), arguments.model.resolve(), folder, variables)
        if arguments.dry_run:
            print(shlex.join(sweep_command(setup, "six", SIX, DRY_RUN_PORT)))
            print(shlex.join(tuner_command(setup, "six", SIX)))
            return
        if arguments.cache == "primed":
            run_sweep(setup, "primed", COMPILED)
            run_tuner(setup, "primed", COMPILED)
        sweep = run_sweep(setup, "six", SIX)
        tuner = run_tuner(setup, "six", SIX)
    if arguments.json:
        print(json.dumps(cost_data(arguments.cache, sweep, tuner), indent=1))
    else:
        print_costs(arguments.cache, sweep, tuner)


def print_costs(cache: str, sweep: CommandCost, tuner: CommandCost) -> None:
    """Print the wall-clock of both commands, their ratio with its target, and the cost of each configuration."""
    ratio = tuner.wall_s / sweep.wall_s
    print(f"compile caches: {cache}")
    print(f"vllm bench sweep serve {sweep.wall_s:.1f} s{sweep.note}; tuner optimize {tuner.wall_s:.1f} s{tuner.note}")
    print(f"tuner / sweep {ratio:.2f}, target ≤ {RATIO_TARGET}: {'met' if ratio <= RATIO_TARGET else 'missed'}")
    rows = [[config.label, *_cells(sweep.by_config[config], tuner.by_config[config])] for config in SIX]
    header = [
        "configuration",
        *(f"{column}, {side}" for column in ("start", "benchmark", "tokens/s") for side in SIDES),
    ]
    print_table(SWEEP_CAPTION, header, rows)


def _cells(sweep: ConfigCost, tuner: ConfigCost) -> list[str]:
    seconds = (sweep.start_s, tuner.start_s, sweep.benchmark_s, tuner.benchmark_s)
    throughputs = (sweep.throughput, tuner.throughput)
    return [*(number_text(each, 1) for each in seconds), *(number_text(each, 0) for each in throughputs)]


def cost_data(cache: str, sweep: CommandCost, tuner: CommandCost) -> dict[str, object]:
    """Return the cost of both commands as plain data."""
    commands = {
        side: {
            "wall_s": command.wall_s,
            "note": command.note.strip(),
            "configurations": {config.label: vars(cost) for config, cost in command.by_config.items()},
        }
        for side, command in zip(SIDES, (sweep, tuner), strict=True)
    }
    return {"cache": cache, "ratio": tuner.wall_s / sweep.wall_s, "target": RATIO_TARGET, **commands}


if __name__ == "__main__":
    compare_commands()
