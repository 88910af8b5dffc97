"""Clients that suggest and complete trials as fast as they can, or with a pause for each trial.

`benchmarks.service.load` starts this as a program of its own; it prints the seconds of each request as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

CLIENTS, STUDIES = 200, 50
SPACE = {
    "parameters": {
        "batch": {"type": "int", "low": 1, "high": 1024, "log": True},
        "share": {"type": "float", "low": 0.5, "high": 0.95},
        "mode": {"type": "categorical", "choices": ["a", "b", "c"]},
        "draft": {"type": "int", "low": 1, "high": 8},
    }
}


@dataclass(frozen=True)
class Plan:
    """What the clients do.

    Attributes:
        target: address of the service, or `HOST:PORT` of Optuna's proxy.
        token: of the service; None: the target is Optuna's proxy.
        prefix: begin of the studies' names.
        warmup_s: seconds that are not counted.
        measured_s: seconds that are.
        trial_s: pause between suggestion and completion.
        clients: how many at once.
        studies: over how many studies they are spread.
    """

    target: str
    token: str | None
    prefix: str
    warmup_s: float
    measured_s: float
    trial_s: float
    clients: int = CLIENTS
    studies: int = STUDIES


@dataclass
class Times:
    """Seconds of each request by verb, failed requests, and completed trials, also those of the warm-up."""

    suggest: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)
    errors: int = 0
    trials: int = 0


class Measurement:
    """Counts what ends within the measured time."""

    def __init__(self, plan: Plan) -> None:
        self.begin = time.monotonic() + plan.warmup_s
        self.end = self.begin + plan.measured_s
        self.times = Times()

    @property
    def runs(self) -> bool:
        """Whether the time is not over."""
        return time.monotonic() < self.end

    def add(self, times: list[float], began: float) -> None:
        """Count a request that ends now."""
        now = time.monotonic()
        if self.begin <= now < self.end:
            times.append(now - began)


async def service_clients(plan: Plan) -> Times:
    """Run clients of the service, each with a connection of its own."""
    measurement = Measurement(plan)
    await asyncio.gather(*(_service_client(plan, measurement, index) for index in range(plan.clients)))
    return measurement.times


async def _service_client(plan: Plan, measurement: Measurement, index: int) -> None:
    import httpx

    times, chance = measurement.times, random.Random(index)
    study, client = f"{plan.prefix}{index % plan.studies}", f"client-{index}"
    headers = {"Authorization": f"Bearer {plan.token}"}
    await asyncio.sleep(chance.uniform(0, max(plan.trial_s, 0.5)))
    async with httpx.AsyncClient(
        base_url=plan.target, headers=headers, timeout=60, verify=False, trust_env=False
    ) as http:
        while measurement.runs:
            began = time.monotonic()
            answer = await http.post(f"/v1/optimizations/{study}:suggest", json={"client_id": client})
            measurement.add(times.suggest, began)
            if answer.status_code != 200:
                times.errors += 1
                continue
            trial = answer.json()["trials"][0]
            if plan.trial_s:
                await asyncio.sleep(plan.trial_s * chance.uniform(0.8, 1.2))
            began = time.monotonic()
            body = {"client_id": client, "metrics": {"loss": trial["params"]["share"]}}
            path = f"/v1/optimizations/{study}/trials/{trial['number']}:complete"
            answer = await http.post(path, json=body)
            measurement.add(times.complete, began)
            times.errors += answer.status_code != 200
            times.trials += 1


def optuna_clients(plan: Plan) -> Times:
    """Run clients of Optuna's proxy, each in a thread with a connection of its own."""
    measurement = Measurement(plan)
    threads = [
        threading.Thread(target=_optuna_client, args=(plan, measurement, index), daemon=True)
        for index in range(plan.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=max(measurement.end + 60 - time.monotonic(), 0))
    return measurement.times


def _optuna_client(plan: Plan, measurement: Measurement, index: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    times, chance = measurement.times, random.Random(index)
    host, port = plan.target.split(":")
    storage = optuna.storages.GrpcStorageProxy(host=host, port=int(port))
    name = f"{plan.prefix}{index % plan.studies}"
    study = optuna.load_study(study_name=name, storage=storage, sampler=optuna.samplers.RandomSampler(seed=index))
    time.sleep(chance.uniform(0, max(plan.trial_s, 0.5)))
    while measurement.runs:
        began = time.monotonic()
        trial = study.ask()
        trial.suggest_int("batch", 1, 1024, log=True)
        share = trial.suggest_float("share", 0.5, 0.95)
        trial.suggest_categorical("mode", ["a", "b", "c"])
        trial.suggest_int("draft", 1, 8)
        measurement.add(times.suggest, began)
        if plan.trial_s:
            time.sleep(plan.trial_s * chance.uniform(0.8, 1.2))
        began = time.monotonic()
        study.tell(trial, share)
        measurement.add(times.complete, began)
        times.trials += 1


def main() -> None:
    """Run the plan of the first argument, and print what was measured."""
    plan = Plan(**json.loads(sys.argv[1]))
    run: Callable[[], Times] = lambda: asyncio.run(service_clients(plan)) if plan.token else optuna_clients(plan)  # noqa: E731
    print(json.dumps(asdict(run())), flush=True)
    os._exit(0)  # threads that wait for a proxy would keep the process


if __name__ == "__main__":
    main()
