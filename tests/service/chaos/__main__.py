"""Random faults while two services run studies; exits with 1 on a problem.

python -m tests.service.chaos --faults 50 --seed 1 [--together 3] [--postgres] [--mlflow] [--folder DIR]

Two processes of `tuner serve` share one database; both may schedule. Simulated studies, and studies that start the fake
vLLM by Ray, are submitted all the time. `faults.py` has the faults, `checks.py` and `watch.py` have what must hold.
"""

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.mlflow_server import mlflow_server
from tests.postgres import postgres_server
from tests.service.chaos.figures import to_json
from tests.service.chaos.play import run
from tests.service.chaos.surroundings import Surroundings


def main() -> int:
    """Do the faults and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--together", type=int, default=1, help="faults that strike before any must be over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true", help="the database is a PostgreSQL that is restarted, too")
    parser.add_argument("--mlflow", action="store_true", help="studies log to an MLflow server that is killed, too")
    parser.add_argument("--folder", type=Path, help="keep the services' folder here, for a look at their logs")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        folder.mkdir(parents=True, exist_ok=True)
        postgres = stack.enter_context(postgres_server()) if arguments.postgres else None
        asked = arguments.mlflow or postgres is not None  # MLflow's own database lies beside a SQLite file only
        mlflow = stack.enter_context(mlflow_server(folder / "mlflow")) if asked else None
        load = os.getloadavg()
        around = Surroundings(folder.resolve(), arguments.seed, postgres, mlflow)
        figures = to_json(run(around, arguments.faults, arguments.together))
    print(json.dumps(figures | {"load_before": load, "load_after": os.getloadavg()}, indent=1))
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
