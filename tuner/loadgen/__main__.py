"""`python -m tuner.loadgen PLAN RESULT [PROGRESS]`: run a plan; write the records to RESULT.jsonl.gz, then RESULT.json.

Meanwhile it writes its progress to the file PROGRESS.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from pathlib import Path

from tuner.files import be_private
from tuner.loadgen.plan import read_plan
from tuner.loadgen.progress import ProgressWriter
from tuner.loadgen.result import generator_delays, write_delays, write_records
from tuner.loadgen.run import run_plan

_PRIORITY = -10
"""Its niceness, where the system allows it: the generator needs little CPU time, but without delay."""

_PARENT_CHECK_PERIOD_S = 1.0
"""Between two checks that the worker that started it still runs."""


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, because only the parent reads the results."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_PERIOD_S)
    os._exit(1)


def main() -> None:
    """Run the plan of the command line."""
    be_private()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each request in flight has a connection
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    plan_file, result_file, *progress_file = map(Path, sys.argv[1:])
    plan, requests = read_plan(plan_file)
    progress = ProgressWriter(progress_file[0], requests) if progress_file else None
    result = run_plan(plan, requests, progress)
    write_records(result_file.with_suffix(".jsonl.gz"), result.records)
    write_delays(result_file.with_suffix(".json"), generator_delays(result))


if __name__ == "__main__":
    main()
