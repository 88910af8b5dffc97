"""Print the link to a study's runs once MLflow's server answers.

    python -m dashboards.mlflow.link URL STUDY

It is started beside the server, and ends with it.
"""

from __future__ import annotations

from dashboards.mlflow.with_parent import end_with_parent

if __name__ == "__main__":
    end_with_parent()

import base64
import json
import os
import sys
import time
import urllib.error
import urllib.request
import webbrowser
from urllib.parse import quote

from dashboards.mlflow.run_layout import experiment_name
from dashboards.mlflow.ui import PASSWORD_VARIABLE, runs_query

POLL_S = 0.3
REQUEST_S = 5.0


def link_to(base: str, study: str, password: str | None = None) -> str | None:
    """Return the page of a study's runs, sorted by score, the best first; None while the server does not answer.

    A study that MLflow does not know yet, or the server does not show, has the page of all experiments.

    The password is that of MLflow's user `admin`, if the server asks for one.
    """
    name = quote(experiment_name(study), safe="")
    try:
        request = urllib.request.Request(f"{base}/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}")
        if password is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(f'admin:{password}'.encode()).decode()}")
        with urllib.request.urlopen(request, timeout=REQUEST_S) as answer:
            experiment = json.load(answer)["experiment"]
            number = experiment["experiment_id"]
            tags = {each["key"]: each["value"] for each in experiment.get("tags", ())}
    except urllib.error.HTTPError as error:
        return f"{base}/#/experiments" if error.code in (401, 403, 404) else None
    except (OSError, ValueError, KeyError):
        return None
    return f"{base}/#/experiments/{number}/runs?{runs_query(tags)}"


def main(base: str, study: str) -> None:
    """Wait for the server, print the link, and open it where a person can see it."""
    while (link := link_to(base, study, os.environ.get(PASSWORD_VARIABLE))) is None:
        time.sleep(POLL_S)
    print(f"MLflow runs: {link}", flush=True)
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(link)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
