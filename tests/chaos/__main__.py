"""Run random faults: `python -m tests.chaos --faults 100 --seed 1 [--postgres] [--json]`; exits with 1 on a problem."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.studies import run_chaos, to_json
from tests.postgres import postgres_server, require_programs


def main() -> int:
    """Run the faults and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true", help="studies in a real PostgreSQL that is restarted, too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        postgres = stack.enter_context(postgres_server(require_programs())) if arguments.postgres else None
        figures = to_json(run_chaos(folder, arguments.faults, arguments.seed, postgres))
    if arguments.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name}: {value}")
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
