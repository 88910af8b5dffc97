"""How soon the service answers for lists and studies when its database is large.

    python -m benchmarks.service.pages --studies 10000 --trials 60
    python -m benchmarks.service.pages --studies 1000 --requests 100 --readers 1

Fills a PostgreSQL of its own with submissions, studies and trials that were never run, starts `tuner serve` on it, and
sends the requests of the page's lists and studies, at random places, from several readers at once. Readers, server and
database share the processors; the table has the load average before the run. Needs PostgreSQL's programs.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np
import psycopg

from benchmarks.command_line import documented_parser, exit_on_sigterm, write_json
from benchmarks.service.server import service
from benchmarks.text_table import print_table
from storage.service.store import open_service_store
from tests.postgres import postgres_server, require_postgresql

OWNERS = 40
METRICS = ", ".join(f"'metric_{index}', round((random() * 1000)::numeric, 3)" for index in range(30))
FILL = (
    """INSERT INTO tuner_submissions (name, owner, state, settings, kind, gpus, priority, shared, granted, runs,
       created_at, queued_at, started_at, ended_at, gpu_seconds, losses, events)
       SELECT 's' || i, 'owner' || i % %(owners)s, (ARRAY['DONE', 'DONE', 'DONE', 'STOPPED', 'FAILED'])[1 + i % 5],
       '{"engine": "simulated"}', 'simulated', 1, 0, i % 10 = 0, '[]', 1, now() - i * interval '1 minute',
       now() - i * interval '1 minute', now(), now(), 60, 0, 0 FROM generate_series(1, %(studies)s) i""",
    """INSERT INTO tuner_studies (name, created_at, provenance, premise, facts)
       SELECT 's' || i, now(), 'simulated', '{}', '{}' FROM generate_series(1, %(studies)s) i""",
    """INSERT INTO tuner_trials (study_id, number, round, kind, params, config, attempts, created_at, provenance,
       started_at, ended_at, worker, device, artifacts, argv, environment, verdict_values, verdict_constraints, score)
       SELECT s.id, t, 0, 'search', '{"max_num_seqs": 64, "block_size": 16, "enforce_eager": true}',
       '{"max_num_seqs": 64, "block_size": 16, "enforce_eager": true}', 1, now(), 'simulated', now(), now(), 'w',
       'gpu', '', '[]', '{}', '{"output_throughput": 100.5}', '{"p99_ttft_ms<500": -0.2}', random()
       FROM tuner_studies s, generate_series(0, %(trials)s - 1) t""",
    f"""INSERT INTO tuner_repeats (trial_id, position, seed, offered, completed, failed, duration_s, metrics)
       SELECT id, 0, 0, 100, 100, 0, 60, json_build_object({METRICS}) FROM tuner_trials""",
    """INSERT INTO tuner_timings (trial_id, attempt, phase, position, seconds)
       SELECT t.id, 1, p.phase, p.position, 1.5 FROM tuner_trials t,
       (VALUES ('start', 0), ('benchmark', 1)) p (phase, position)""",
)


def fill(url: str, studies: int, trials: int) -> None:
    """Fill a database with rows that nobody ran."""
    open_service_store(url).close()
    numbers = {"studies": studies, "trials": trials, "owners": OWNERS}
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in FILL:
            for name, number in numbers.items():
                statement = statement.replace(f"%({name})s", str(number))
            connection.execute(statement.encode())
        connection.execute("VACUUM ANALYZE")


def requests(studies: int) -> dict[str, Callable[[random.Random], str]]:
    """Return the address of a request by its kind."""

    def some(chance: random.Random) -> str:
        return f"s{chance.randint(1, studies)}"

    return {
        "GET /v1/studies": lambda _: "/v1/studies",
        "GET /v1/studies?limit=200": lambda _: "/v1/studies?limit=200",
        "GET /v1/studies?owner=…&state=FAILED": lambda chance: (
            f"/v1/studies?owner=owner{chance.randrange(OWNERS)}&state=FAILED"
        ),
        "GET /v1/studies?text=…": lambda chance: f"/v1/studies?text={some(chance)}",
        "GET /v1/studies/ID": lambda chance: f"/v1/studies/{some(chance)}",
        "GET /v1/studies/ID/trials": lambda chance: f"/v1/studies/{some(chance)}/trials",
    }


def seconds_of(address: str, token: str, path: Callable[[random.Random], str], count: int, readers: int) -> list[float]:
    """Return the seconds of requests from several readers."""

    def read(reader: int) -> list[float]:
        chance, found = random.Random(reader), []
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http:
            http.get("/v1/session").raise_for_status()
            for _ in range(count // readers):
                began = time.monotonic()
                http.get(path(chance)).raise_for_status()
                found.append(time.monotonic() - began)
        return found

    with ThreadPoolExecutor(readers) as pool:
        return [each for own in pool.map(read, range(readers)) for each in own]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fill a database, measure the requests and print them."""
    parser = documented_parser(__doc__)
    add = parser.add_argument
    add("--studies", type=int, default=10_000, help="submissions [10000]")
    add("--trials", type=int, default=60, help="trials of each [60]")
    add("--requests", type=int, default=300, help="requests of each kind [300]")
    add("--readers", type=int, default=4, help="readers at once [4]")
    add("--json", type=Path, metavar="FILE", help="write the seconds of all requests")
    given: argparse.Namespace = parser.parse_args(arguments)
    exit_on_sigterm()
    require_postgresql()
    with TemporaryDirectory() as name, postgres_server(durable=True) as postgres:
        url = postgres.new_database()
        fill(url, given.studies, given.trials)
        load = os.getloadavg()[0]
        with service(Path(name), url) as (_, address, token):
            times = {
                kind: seconds_of(address, token, path, given.requests, given.readers)
                for kind, path in requests(given.studies).items()
            }
    caption = (
        f"Latencies in ms of {given.requests} requests of each kind from {given.readers} readers at once, with "
        f"{given.studies:,} studies of {given.trials} trials in PostgreSQL; load average before: {load:.1f}."
    )
    rows = [
        [kind, *(f"{1000 * value:.0f}" for value in np.percentile(found, [50, 99]))] for kind, found in times.items()
    ]
    print_table(caption, ["request", "p50", "p99"], rows)
    write_json(given.json, {"provenance": "measured", "load": load, "seconds": times})


if __name__ == "__main__":
    main()
