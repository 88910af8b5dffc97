"""The link to a study's runs in MLflow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from dashboards.mlflow.link import link_to
from dashboards.mlflow.ui import VIEW_TAG


class Answers(BaseHTTPRequestHandler):
    """MLflow's answer about an experiment; it knows `a study/1` only."""

    def do_GET(self) -> None:
        """Answer."""
        [name] = parse_qs(urlsplit(self.path).query)["experiment_name"]
        locked = name == "locked" and self.headers["Authorization"] != "Basic YWRtaW46YSBwYXNzd29yZA=="
        known = name in ("a study/1", "viewed", "locked")
        tags = [{"key": VIEW_TAG, "value": "{}"}] if name == "viewed" else []
        self.send_response(401 if locked else 200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"experiment": {"experiment_id": "7", "tags": tags}} if known else {}).encode())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_the_runs_of_a_study_are_sorted_by_score(port: int) -> None:
    link = link_to(f"http://127.0.0.1:{port}", "a study/1")
    assert link is not None
    page, _, query = link.partition("?")
    assert page == f"http://127.0.0.1:{port}/#/experiments/7/runs"
    found = parse_qs(query)
    assert (found["orderByKey"], found["orderByAsc"]) == (["metrics.`score`"], ["false"])


def test_a_study_with_a_view_opens_in_it(port: int) -> None:
    page = f"http://127.0.0.1:{port}/#/experiments/7/runs"
    assert (
        link_to(f"http://127.0.0.1:{port}", "viewed") == f"{page}?viewStateShareKey=tuner&workflowType=machine_learning"
    )


def test_a_study_that_mlflow_does_not_know_has_the_page_of_all(port: int) -> None:
    assert link_to(f"http://127.0.0.1:{port}", "other") == f"http://127.0.0.1:{port}/#/experiments"


def test_a_server_with_a_password_gets_it(port: int) -> None:
    base = f"http://127.0.0.1:{port}"
    assert "/experiments/7/runs" in str(link_to(base, "locked", "a password"))
    assert link_to(base, "locked", "another") == f"{base}/#/experiments"


def test_a_server_that_does_not_answer_yet_has_no_link() -> None:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        free = server.server_port
    assert link_to(f"http://127.0.0.1:{free}", "a study/1") is None
