"""Run a driver of the service, or a command, that hangs for ten minutes in one stage: `held.py STAGE FILE [COMMAND]`.

It makes the file when it hangs.
"""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANG_S = 600.0
HELD = Path(sys.argv[2] if len(sys.argv) > 2 else "held")


def sleep() -> None:
    """Hang in a call of the system."""
    HELD.touch()
    time.sleep(HANG_S)


def compute() -> None:
    """Hang in Python."""
    HELD.touch()
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        sum(range(1000))


def wait_for_child() -> None:
    """Hang in a program that ignores SIGTERM and has a child in a session of its own."""
    script = "trap '' TERM; setsid sleep 600 & : > \"$1\"; wait; sleep 600"
    subprocess.run(["/bin/sh", "-c", script, "child", HELD], check=False)


def read() -> None:
    """Hang in a read of a server that accepts a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        HELD.touch()
        client.recv(1)


@dataclass(frozen=True)
class Place:
    """Where a driver hangs: in a call of `name` of which `when` is true, in the way `hang`."""

    name: str
    hang: Callable[[], None]
    when: Callable[..., bool] = lambda *_, **__: True


PLACES = {
    "waits for the driver before it": Place("tuner.service.driver.run:wait_until_free", sleep),
    "probes vLLM": Place("tuner.use_cases.optimize:chosen_engine", wait_for_child),
    "reads the model from the hub": Place("tuner.use_cases.optimize:plan_study", read),
    "starts Ray": Place("tuner.use_cases.optimize:_executor", wait_for_child),
    "waits for a worker": Place("tuner.executors.base:InlineExecutor.engine_info", sleep),
    "checks the answers": Place("tuner.use_cases.optimize:_checked", wait_for_child),
    "predicts": Place("tuner.study.proposals:Proposals.next", compute),
    "checks a configuration": Place("tuner.engines.simulator.engine:SimulatedEngine.check", sleep),
    "launches a server": Place("tuner.engines.simulator.engine:SimulatedEngine.launch", sleep),
    "warms up": Place("tuner.engines.simulator.engine:SimulatedServer.warm_up", compute),
    "benchmarks": Place("tuner.engines.simulator.engine:SimulatedServer.benchmark", sleep),
    "searches a capacity": Place("tuner.trial.pipeline:find_capacity", sleep),
    "measures finalists": Place("tuner.executors.base:run_trial", sleep, lambda engine, spec, *_, **__: spec.round > 0),
    "plans smaller forms": Place("tuner.study.finals:Contest.step", compute),
    "concludes": Place("tuner.study.finals:conclude", compute),
    "writes script and report": Place("tuner.use_cases.optimize:write_files", wait_for_child),
    "logs to MLflow": Place("tuner.observers.mlflow_follower:MlflowFollower.wait", HELD.touch),
    "computes lessons": Place("tuner.observers.host_learning:HostLearner.close", sleep),
    "predicts fleets": Place("tuner.service.driver.size:size", compute),
    "confirms a fleet": Place("tuner.service.driver.size:check_machine", wait_for_child),
}
"""Stages of a study."""

COMMANDS = {
    "optimize": Place("tuner.use_cases.optimize:chosen_engine", wait_for_child),
    "capacity": Place("tuner.use_cases.capacity:chosen_engine", wait_for_child),
    "quality": Place("tuner.cli.output.pages.benchmarks:check_quality", compute),
    "recheck": Place("tuner.cli.output.pages.recheck:recheck", read),
}
"""Commands that measure."""


def hold(place: Place) -> None:
    """Let calls of a place hang."""
    module, _, path = place.name.partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    original = getattr(owner, name)

    def held(*arguments: Any, **named: Any) -> Any:
        if place.when(*arguments, **named):
            place.hang()
        return original(*arguments, **named)

    setattr(owner, name, held)


if __name__ == "__main__":
    stage, arguments = sys.argv[1], sys.argv[3:]
    hold({**PLACES, **COMMANDS}[stage])
    if arguments:
        from tuner.cli.main import main as run_command

        sys.argv = ["tuner", *arguments]
        run_command()
    from tuner.service.driver.__main__ import main as drive

    sys.exit(drive())
