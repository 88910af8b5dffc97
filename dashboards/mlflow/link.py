"""Print the link to a study's runs once MLflow's server answers.

    python -m dashboards.mlflow.link PORT STUDY

It is started beside the server, and ends with it.
"""

from __future__ import annotations

from dashboards.mlflow.with_parent import end_with_parent

if __name__ == "__main__":
    end_with_parent()

import json
import os
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from urllib.parse import quote

from dashboards.mlflow.run_layout import experiment_name
from dashboards.mlflow.view import runs_query

POLL_S = 0.3
REQUEST_S = 5.0


def link_to(port: int, study: str) -> str | None:
    """Return the page of a study's runs, sorted by score, the best first; None while the server does not answer.

    A study that MLflow does not know yet has the page of all experiments.
    """
    base = f"http://127.0.0.1:{port}"
    name = quote(experiment_name(study), safe="")
    try:
        with urllib.request.urlopen(
            f"{base}/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}", timeout=REQUEST_S
        ) as answer:
            experiment = json.load(answer)["experiment"]
            number = experiment["experiment_id"]
            tags = {each["key"]: each["value"] for each in experiment.get("tags", ())}
    except urllib.error.HTTPError as error:
        return f"{base}/#/experiments" if error.code == 404 else None
    except (OSError, ValueError, KeyError):
        return None
    return f"{base}/#/experiments/{number}/runs?{runs_query(tags)}"


def main(port: int, study: str) -> None:
    """Wait for the server, print the link, and open it where a person can see it."""
    while (link := link_to(port, study)) is None:
        time.sleep(POLL_S)
    print(f"MLflow runs: {link}", flush=True)
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(link)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
