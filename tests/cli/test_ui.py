"""`tuner study ui`: an address that other machines reach needs a password."""

import base64
import os
import re
import sys
import time
from pathlib import Path

import pytest

from storage import open_store
from tests import store_samples as samples
from tests.browser.servers import running
from tests.cli.command import run_here
from tuner import extras
from tuner.http import ReadLimits, fetch
from tuner.processes.ports import lease_port

PASSWORD = "correct horse battery"
TUNNEL = "or leave --host out, and open a tunnel: `ssh -N -L 5000:127.0.0.1:5000 USER@THIS_MACHINE`"


def test_without_a_password_one_line_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for password in (None, "", "elevenchars"):
        monkeypatch.delenv("MLFLOW_AUTH_ADMIN_PASSWORD", raising=False)
        if password is not None:
            monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", password)
        printed = run_here(tmp_path, "study", "ui", "--host", "0.0.0.0")
        assert (printed.code, printed.out) == (2, "")
        rule = "--host 0.0.0.0: other machines reach this address, and MLflow has no password"
        remedy = "set MLFLOW_AUTH_ADMIN_PASSWORD to 12 characters or more"
        assert printed.err == f"tuner: {rule}; {remedy}, {TUNNEL}\n"
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_one_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_AUTH_ADMIN_PASSWORD", PASSWORD)
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    printed = run_here(tmp_path, "study", "ui", "--host", "10.0.0.7")
    assert (printed.code, printed.out) == (2, "")
    remedy = "`pip install 'llm-serving-tuner[ui]'`, in a checkout `uv sync --inexact --extra ui`"
    assert printed.err == f"tuner: the package `flask_wtf` is not installed; {remedy}\n"


@pytest.mark.slow
def test_with_a_password_nothing_is_shown_without_it(tmp_path: Path) -> None:
    (tmp_path / "tuner_study").mkdir()
    store = open_store(f"sqlite:///{tmp_path / 'tuner_study' / 'tuner.db'}")
    store.create_study(samples.study("a study"))
    store.close()
    environment = {**os.environ, "MLFLOW_AUTH_ADMIN_PASSWORD": PASSWORD}
    token = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    search = "/ajax-api/2.0/mlflow/experiments/search?max_results=1"
    with lease_port(tmp_path / "ports") as lease:
        words = f"-m tuner.cli.main study ui --host 0.0.0.0 --port {lease.port}".split()
        base = f"http://127.0.0.1:{lease.port}"
        with running([sys.executable, *words], tmp_path, f"{base}/health", environment) as output:
            codes = {path: fetch(base + path, ReadLimits(30.0)).status for path in ("/", search, "/get-artifact")}
            assert codes == dict.fromkeys(codes, 401)
            reply = fetch(base + search, ReadLimits(30.0), headers={"Authorization": f"Basic {token}"})
            assert reply.status == 200
            while re.search(r"^MLflow runs: http://127", output.read_text(), re.MULTILINE) is None:
                time.sleep(0.1)
            assert PASSWORD not in output.read_text()
    assert PASSWORD.encode() not in b"".join(file.read_bytes() for file in (tmp_path / "tuner_study").glob("mlflow*"))
