"""A client of an optimization: asks for trials, runs them, and tells what it measured, until none is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import httpx

NEW = {
    "id": "compression",
    "space": {
        "parameters": {
            "level": {"type": "int", "low": 1, "high": 9},
            "window": {"type": "categorical", "choices": ["small", "large"]},
            "block": {"type": "int", "low": 16, "high": 1024, "log": True, "when": 'window == "large"'},
        },
        "rules": [{"name": "slow", "forbid": "level > 7 and block > 512", "why": "it takes an hour"}],
    },
    "objectives": [
        {"metric": "seconds", "direction": "minimize"},
        {"metric": "ratio", "direction": "maximize", "weight": 2},
    ],
    "sampler": "residual",
    "trials": 20,
}


def run(http: httpx.Client, client: str, measure: Callable[[Mapping[str, Any]], dict[str, float] | None]) -> Any:
    """Run trials until the optimization is complete, and return its best one.

    Args:
        http: with the server's address and the header `Authorization`.
        client: a name that no other client has.
        measure: returns the metrics of a configuration; None if it cannot work.
    """
    http.post("/v1/optimizations", json=NEW).raise_for_status()
    address = f"/v1/optimizations/{NEW['id']}"
    while True:
        answer = http.post(f"{address}:suggest", json={"client_id": client}).raise_for_status().json()
        if not answer["trials"]:  # another client may still run the last ones
            return http.get(f"{address}:best").raise_for_status().json()
        for trial in answer["trials"]:
            metrics = measure(trial["params"])
            result = {"metrics": metrics} if metrics else {"reason": "too large"}
            body = {"client_id": client, **result}
            http.post(f"{address}/trials/{trial['number']}:complete", json=body).raise_for_status()


def measure(params: Mapping[str, Any]) -> dict[str, float] | None:
    """Return what a real client would measure."""
    block = params.get("block", 16)
    return None if block > 900 else {"seconds": 0.1 * params["level"] + block / 1000, "ratio": 1 + params["level"] / 5}


if __name__ == "__main__":
    headers = {"Authorization": f"Bearer {os.environ['TUNER_TOKEN']}"}
    with httpx.Client(base_url=sys.argv[1], headers=headers, timeout=60) as server:
        print(run(server, f"process-{os.getpid()}", measure))
