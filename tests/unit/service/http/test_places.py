"""Paths of the server in what users read."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

import tuner
from storage.service.records import SubmissionState
from tests.served import Served, serving
from tuner.service.http.places import Places

PACKAGE = Path(tuner.__file__).parent


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("TUNER_HOME", "/home/ada/.cache/tuner")
    return Places(Path("/srv/service"), "sqlite:////srv/data/tuner.db")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in /srv/service/submissions/first/contents/a.yaml: no", "in submissions/first/contents/a.yaml: no"),
        ("the database sqlite:////srv/data/tuner.db: locked", "the database sqlite:///tuner.db: locked"),
        ('{"path": "/srv/data/artifacts/first/0"}', '{"path": "artifacts/first/0"}'),
        ("'/home/ada/.cache/tuner/x.json'", "'tuner/x.json'"),
        (f'File "{PACKAGE}/api.py", line 3', 'File "tuner/api.py", line 3'),
        (f"{sys.prefix}/bin/python", f"{Path(sys.prefix).name}/bin/python"),
        ("/srv/data/models/llama", "/srv/data/models/llama"),  # a user's model
        ("/other/srv/data/artifacts", "/other/srv/data/artifacts"),
        ("/srv/data/artifacts-old", "/srv/data/artifacts-old"),
        ("https://x.test/srv/data/artifacts", "https://x.test/srv/data/artifacts"),
    ],
)
def test_a_path_of_the_server_becomes_relative(places: Places, text: str, shown: str) -> None:
    assert places.hidden_text(text) == shown
    assert places.hidden(text.encode()) == shown.encode()


def test_a_masked_text_has_as_many_bytes(places: Places) -> None:
    text = b"in /srv/service/submissions/first: no"
    assert places.masked(text) == b"in *************submissions/first: no"
    assert len(places.masked(text)) == len(text)


def test_what_users_read_has_no_path(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        served.submit("first")
        served.start("first")
        folder = tmp_path / "submissions" / "first"
        served.end("first", SubmissionState.FAILED, f"no file {folder}/contents/x")
        folder.mkdir(parents=True)
        (folder / "driver.log").write_text(f"trace: {folder}/contents/x\n" * 3)
        texts = [read(served, path) for path in ("", "/log", "/log?offset=20&limit=50", "/events?follow=false")]
    for text in texts:
        assert str(tmp_path) not in text
        assert str(tmp_path)[:20] not in text
    assert "no file submissions/first/contents/x" in texts[0]
    assert texts[2] == texts[1][20:70]


def read(served: Served, path: str) -> str:
    headers = {"Authorization": f"Bearer {served.tokens['ada']}"}
    return httpx.get(f"{served.url}/v1/studies/first{path}", headers=headers, timeout=60).text
