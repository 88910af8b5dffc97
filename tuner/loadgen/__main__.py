"""`python -m tuner.loadgen PLAN RESULT`: run a plan; RESULT.parquet gets the records, RESULT.json, last, the delays."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from pathlib import Path

from tuner.loadgen.plan import read_plan
from tuner.loadgen.result import own_delays, write_delays, write_records
from tuner.loadgen.run import run_load

PRIORITY = -10
"""Its niceness, where that may be lowered: it needs little, and needs it at once, beside a server that takes all."""


PERIOD_S = 1.0
"""Between two looks at whether the worker that started it is still there."""


def _end_with(parent: int) -> None:
    """End this process when its parent is gone: nobody would read what it measures."""
    while os.getppid() == parent:
        time.sleep(PERIOD_S)
    os._exit(1)


def main() -> None:
    """Run the plan that the command line names."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each request in flight has a connection
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    plan_file, result_file = map(Path, sys.argv[1:])
    plan, requests = read_plan(plan_file)
    result = run_load(plan, requests)
    write_records(result_file.with_suffix(".parquet"), result.records)
    write_delays(result_file.with_suffix(".json"), own_delays(result))


if __name__ == "__main__":
    main()
