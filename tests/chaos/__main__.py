"""Run random faults; exits with 1 on a problem.

python -m tests.chaos --faults 100 --seed 1 [--postgres] [--mlflow] [--isolated] [--vllm PROGRAM] [--json]
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.studies import Surroundings, run_chaos, to_json
from tests.postgres import postgres_server

INSIDE = "CHAOS_INSIDE"
"""Set in the namespaces."""


def main() -> int:
    """Run the faults and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true", help="studies in a real PostgreSQL that is restarted, too")
    parser.add_argument("--mlflow", action="store_true", help="studies log to an MLflow server that is killed, too")
    parser.add_argument("--isolated", action="store_true", help="without a network, each study on a disk that fills up")
    parser.add_argument("--vllm", type=Path, help="a real vLLM in place of the fake one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.isolated and INSIDE not in os.environ:
        isolate()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        postgres = stack.enter_context(postgres_server()) if arguments.postgres else None
        around = Surroundings(postgres, arguments.mlflow, arguments.isolated, arguments.vllm)
        figures = to_json(run_chaos(folder, arguments.faults, arguments.seed, around))
    if arguments.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name}: {value}")
    return 1 if figures["problems"] else 0


def isolate() -> None:
    """Run this program again in namespaces of its own for mounts and the network, with loopback only."""
    script = 'ip link set lo up && exec "$@"'
    inside = ["sh", "-c", script, "sh", sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
    os.execvpe("unshare", ["unshare", "--mount", "--net", *inside], {**os.environ, INSIDE: "1"})


if __name__ == "__main__":
    sys.exit(main())
