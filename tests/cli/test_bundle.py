"""`tuner report --bundle`: what the archive contains, what it does not, and what the command refuses."""

from __future__ import annotations

import io
import json
import re
import socket
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dashboards.plots.interactive.embedded import plotly_script
from storage import open_store
from storage.records import Failure, FailureKind, Phase, TrialKind, TrialOutcome, TrialRecord
from tests.cli.command import run_here
from tests.cli.conftest import NoMlflow
from tuner import __version__
from tuner.use_cases import optimize as optimize_run

STUDY = ("optimize", "--engine", "simulated", "--plain", "--confirm-rounds", "2", "--trials", "6", "--no-reduce")
LOAD = ("--prompts", "40", "--users", "20")
EMPTY = '{"gpu_memory_utilization": 0.7, "max_model_len": 32768, "max_num_seqs": 8}'

TOKEN, PASSWORD, OWN = "hf_madeUpMadeUpMadeUp42", "made-up-password-81c2", "made-up-variable-33d9"
USER, HOST, CLIENT = "quentin", "gpubox-0815", "confidential-client"
HOME = f"/home/{USER}"
NEVER = (TOKEN, PASSWORD, OWN, USER, HOST, CLIENT, "corp.example", "10.11.12.13", "MADE_UP_NAME")
"""What no file of the bundle may contain."""

ALWAYS = ("README.txt", "report.html", "trials.csv", "conclusion.json", "hardware.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A folder with a simulated study, and its copy in which everything private is planted."""
    made = tmp_path_factory.mktemp("bundles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimize_run, "MlflowFollower", NoMlflow)
        printed = run_here(made, *STUDY, *LOAD, "--study", "plain")
    assert printed.code == 0, printed.err
    plant(made / "tuner_study" / "tuner.db", made)
    return made


def plant(database: Path, folder: Path) -> None:
    """Copy the study `plain` to `planted`, with secrets, paths and names in every text that a study can hold."""
    with closing(open_store(f"sqlite:///{database}")) as store:
        record = store.study("plain")
        assert record is not None
        assert record.conclusion is not None
        model = f"{HOME}/{CLIENT}/my-model"
        arguments = ["--chat-template", f"{HOME}/{CLIENT}/chat.jinja", "--root-path", f"http://{HOST}.corp.example/x"]
        variables = {"HF_TOKEN": "${HF_TOKEN}", "MADE_UP_NAME": OWN, "MLFLOW_TRACKING_URI": uri()}
        premise = {
            **record.premise,
            "model": {"name": model, "tokenizer": model},
            "server": {"arguments": arguments, "environment": variables},
            "files": {f"/data/{CLIENT}/prompts.txt": "0" * 64},
        }
        facts = {**record.facts, "host": HOST, "script": f"{HOME}/best.sh", "executable": f"{HOME}/vllm"}
        conclusion = {**record.conclusion, "reason": f"{record.conclusion['reason']} in {HOME} on {HOST} by {TOKEN}"}
        store.create_study(replace(record, name="planted", premise=premise, facts=facts, conclusion=conclusion))
        trials = store.trials("plain")
        for trial in [*trials, failed(trials[0], max(each.number for each in trials) + 1)]:
            store.add_trial(replace(trial, study="planted", label=f"of {USER}", outcome=None, verdict=None))
            assert trial.outcome is not None
            outcome = replace(
                trial.outcome,
                worker=f"{HOST}:gpu0",
                argv=(f"{HOME}/bin/vllm", "serve", model, *arguments, *trial.outcome.argv[3:]),
                environment={**trial.outcome.environment, **variables},
                artifacts=f"{folder}{HOME}/artifacts/{trial.number}",
            )
            store.finish_trial("planted", trial.number, trial.round, outcome, trial.verdict)


def uri() -> str:
    return f"http://{USER}:{PASSWORD}@mlflow.corp.example:5000"


def failed(like: TrialRecord, number: int) -> TrialRecord:
    """Return a failed trial whose log shows everything."""
    evidence = (
        f"HF_TOKEN={TOKEN} in {HOME}/.cache/huggingface, {uri()}\n"
        f"File /opt/venv/lib/python3.12/site-packages/vllm/engine.py, line 7, on {HOST} (10.11.12.13)\n"
        f"OSError: /data/{CLIENT}/weights.bin: {OWN}"
    )
    failure = Failure(FailureKind.ENGINE_CRASH, Phase.READY, f"cannot read {HOME}/x, {PASSWORD}", evidence, 1)
    assert like.outcome is not None
    outcome: TrialOutcome = replace(like.outcome, repeats=(), server=None, failure=failure)
    return replace(like, number=number, round=0, kind=TrialKind.SEARCH, outcome=outcome, verdict=None)


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment and the host of the user."""
    for name, value in {"HF_TOKEN": TOKEN, "MY_SECRET": OWN, "MLFLOW_TRACKING_URI": uri(), "USER": USER}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{HOST}.corp.example")


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as packed:
        assert packed.testzip() is None
        return {name: packed.read(name).decode() for name in packed.namelist()}


def test_a_bundle_has_the_report_the_trials_and_what_they_rest_on(folder: Path) -> None:
    printed = run_here(folder, "report", "plain", "--bundle")
    assert (printed.code, printed.out) == (0, "wrote plain-bundle.zip; look through it, then attach it\n")
    found = contents(folder / "plain-bundle.zip")
    assert [*found] == [*ALWAYS, "best_serve.sh"]
    assert "<h1>plain</h1>" in found["report.html"]
    assert "Simulated, not measured" in found["report.html"]
    assert found["trials.csv"] == run_here(folder, "trials", "--study", "plain", "--csv").out
    assert json.loads(found["conclusion.json"])["winner"] == 0
    assert found["README.txt"].startswith("Simulated figures of the study plain")
    assert found["best_serve.sh"].startswith("#!/usr/bin/env bash\n# Simulated, not measured")


def test_hardware_and_versions_are_those_that_the_study_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.gpu.host_facts", lambda: pytest.fail("the bundle asks this machine"))
    assert run_here(folder, "report", "plain", "--bundle", "-o", "h.zip").code == 0
    found = json.loads(contents(folder / "h.zip")["hardware.json"])
    assert (found["numbers"], found["card"], found["driver"]) == ("simulated", {"Tesla T4": 1}, None)
    assert found["engine"] == {"name": "simulated vllm", "version": "0.15.1"}
    [machine] = found["machines"]
    assert machine["tuner"] == __version__
    assert re.fullmatch(r"3\.\d+\.\d+\S*", machine["python"])
    assert {"os", "cpu", "cores", "memory_gib"} <= {*machine}
    assert "host" not in machine


def test_the_same_study_gives_the_same_bytes(folder: Path) -> None:
    for name in ("a.zip", "b.zip"):
        assert run_here(folder, "report", "plain", "--bundle", "-o", name).code == 0
    assert (folder / "a.zip").read_bytes() == (folder / "b.zip").read_bytes()
    with zipfile.ZipFile(folder / "a.zip") as packed:
        assert {entry.date_time for entry in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert packed.getinfo("best_serve.sh").external_attr >> 16 & 0o777 == 0o755


@pytest.mark.usefixtures("private")
def test_nothing_private_is_in_the_archive(folder: Path) -> None:
    printed = run_here(folder, "report", "planted", "--bundle", "-o", "planted.zip")
    assert printed.code == 0, printed.err
    found = contents(folder / "planted.zip")
    assert [*found] == [*ALWAYS, "best_serve.sh", "failures.txt"]
    own = (*NEVER, str(folder), str(Path.home()), f"/home/{USER}")
    shown = {name: text.replace(plotly_script(), "") for name, text in found.items()}
    assert [(name, value) for name, text in shown.items() for value in own if value.lower() in text.lower()] == []
    assert not [value for value in own if value.encode() in (folder / "planted.zip").read_bytes()]


@pytest.mark.usefixtures("private")
def test_what_explains_a_failure_stays(folder: Path) -> None:
    assert run_here(folder, "report", "planted", "--bundle", "-o", "f.zip").code == 0
    lines = contents(folder / "f.zip")["failures.txt"].splitlines()
    assert re.fullmatch(r"#\d+ engine_crash \(configuration\), ready, exit code 1", lines[0])
    assert lines[1:] == [
        "  cannot read …/x, ${MLFLOW_TRACKING_URI_PASSWORD}",
        "  | HF_TOKEN=${HF_TOKEN} in …/huggingface, http://…",
        "  | File …/site-packages/vllm/engine.py, line 7, on HOST (ADDRESS)",
        "  | OSError: …/weights.bin: ${MY_SECRET}",
    ]


@pytest.mark.usefixtures("private")
def test_a_maintainer_reads_the_trials_with_pandas(folder: Path) -> None:
    assert run_here(folder, "report", "planted", "--bundle", "-o", "m.zip").code == 0
    frame = pd.read_csv(io.StringIO(contents(folder / "m.zip")["trials.csv"]))
    assert frame.loc[frame["number"] == 0, "score"].iloc[0] == pytest.approx(1.0)
    assert {*frame["provenance"]} == {"simulated"}
    assert {*frame["worker"]} == {"w0"}
    assert list(frame[frame["state"] == "failed"]["failure_kind"]) == ["engine_crash"]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("nothing", "--bundle"), "tuner: study 'nothing': the database has no study of this name"),
        (("plain", "planted", "--bundle"), "tuner: a bundle has one study, not 2; write one for each"),
        (("plain", "--bundle", "-o", "x.tar.gz"), "-o 'x.tar.gz': a bundle is a ZIP archive; give a name that ends in"),
        (("plain", "--bundle", "-o", "no/x.zip"), "the file cannot be written: No such file or directory"),
        (("plain", "--bundle", "--storage", "nothing.db"), "nothing.db"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: tuple[str, ...], rule: str) -> None:
    printed = run_here(folder, "report", *words)
    assert (printed.code, len(printed.err.splitlines())) == (2, 1)
    assert rule in printed.err


def test_the_users_files_stay_with_the_user(tmp_path: Path, without_mlflow: None) -> None:
    words = "a made up prompt that nobody else should read"
    own = tmp_path / CLIENT
    own.mkdir()
    (own / "prompts.jsonl").write_text(json.dumps({"prompt": words}) + "\n")
    (own / "lengths.txt").write_text("24\n31\n")
    classes = "classes:\n  a:\n    output: {file: lengths.txt}\n    text: {file: prompts.jsonl}\n"
    (own / "load.yaml").write_text(f"arrivals: {{process: poisson, rate: 4}}\nrequests: 30\n{classes}")
    study = ("--study", "own", "--workload", str(own / "load.yaml"))
    printed = run_here(tmp_path, *STUDY, *study)
    assert printed.code == 0, printed.err
    assert run_here(tmp_path, "report", "own", "--bundle").code == 0
    found = contents(tmp_path / "own-bundle.zip")
    assert "best_serve.sh" in found
    assert "…/lengths.txt" in found["hardware.json"]
    assert "base64 -d" not in found["best_serve.sh"]
    assert "base64 -d" in (tmp_path / "best_serve.sh").read_text()  # the study's own script carries them
    shown = "".join(text.replace(plotly_script(), "") for text in found.values())
    assert [value for value in (words, CLIENT, str(tmp_path)) if value in shown] == []
