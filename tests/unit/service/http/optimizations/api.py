"""An API process in this process, on a database of its own, with a clock that tests move."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.service_samples import START
from tests.unit.service.http.conftest import Api as HttpApi
from tests.unit.service.http.conftest import serving_with

SPACE = """\
parameters:
  batch:
    description: Requests in a step.
    type: int
    low: 1
    high: 64
    log: true
  mode:
    description: How it runs.
    type: categorical
    choices: [eager, graph]
  graphs:
    description: How many graphs.
    type: int
    low: 1
    high: 8
    when: mode == "graph"
  share:
    description: Of the memory.
    type: float
    low: 0.5
    high: 0.95
rules:
  - name: large-batches
    forbid: batch > 32 and share > 0.8
    why: a batch of {batch} does not fit
"""

LOSS = [{"metric": "loss", "direction": "minimize"}]


class Api:
    """The requests about optimizations of an API process."""

    def __init__(self, http: HttpApi) -> None:
        self.http = http
        self.now: datetime = START

    def call(self, method: str, path: str, body: object = None, who: str = "ada") -> Any:
        """Return the answer to a request."""
        return self.http.call(method, f"/v1/optimizations{path}", who, json=body)

    def get(self, path: str, who: str = "ada") -> Any:
        """Return the JSON of an answer of 200."""
        answer = self.call("GET", path, who=who)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: object = None, who: str = "ada") -> Any:
        """Return the JSON of an answer below 300."""
        answer = self.call("POST", path, body, who)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def problem(self, path: str, body: object, who: str = "ada", method: str = "POST") -> dict[str, Any]:
        answer = self.call(method, path, body, who)
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        found: dict[str, Any] = answer.json()
        assert found["status"] == answer.status_code
        return found

    def create(self, id: str = "o", **changes: Any) -> Any:
        """Create an optimization of the loss."""
        return self.post("", {"id": id, "space": SPACE, "objectives": LOSS, "sampler": "random", **changes})

    def suggest(self, client: str = "c", count: int = 1, id: str = "o") -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = self.post(f"/{id}:suggest", {"client_id": client, "count": count})["trials"]
        return trials

    def complete(self, number: int, client: str = "c", id: str = "o", **values: Any) -> Any:
        """End a trial."""
        return self.post(f"/{id}/trials/{number}:complete", {"client_id": client, **values})


@contextmanager
def serving(folder: Path) -> Iterator[Api]:
    """Serve the database of a folder with a clock that tests move."""
    holder: list[Api] = []
    with serving_with(folder, clock=lambda: holder[0].now if holder else START) as http:
        holder.append(Api(http))
        yield holder[0]
