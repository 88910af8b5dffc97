"""`tuner study report --bundle`: what the archive contains, what it does not, and what the command refuses."""

import json
import re
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import Failure, FailureKind, Phase, TrialKind, TrialRecord
from storage import open_store
from tests.cli.command import one_line, ran, run_here
from tuner import __version__

STUDY = ("optimize", "--engine", "simulated", "--plain", "--confirm-rounds", "2", "--trials", "3", "--no-reduce")
LOAD = ("--prompts", "40", "--users", "20")

TOKEN, PASSWORD, OWN = "hf_madeUpMadeUpMadeUp42", "made-up-password-81c2", "made-up-variable-33d9"
MODEL = "/home/quentin/my-model"
ALWAYS = ("README.txt", "report.html", "trials.csv", "conclusion.json", "hardware.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A folder with a simulated study, and its copy in which secrets are planted."""
    made = tmp_path_factory.mktemp("bundles")
    ran(made, *STUDY, *LOAD, "--study", "plain")
    plant(made / "tuner_study" / "tuner.db")
    return made


def plant(database: Path) -> None:
    """Copy the study `plain` to `planted`, with secrets in every text that a study can hold."""
    with closing(open_store(f"sqlite:///{database}")) as store:
        record = store.study("plain")
        assert record is not None
        assert record.conclusion is not None
        arguments = ["--root-path", uri(), "--api-key", TOKEN]
        variables = {"HF_TOKEN": "${HF_TOKEN}", "OTHER": OWN, "MLFLOW_TRACKING_URI": uri()}
        server = {"arguments": arguments, "environment": variables}
        premise = {**record.premise, "model": {"name": MODEL, "tokenizer": MODEL}, "server": server}
        conclusion = {**record.conclusion, "reason": f"{record.conclusion['reason']} by {TOKEN}"}
        store.create_study(replace(record, name="planted", premise=premise, conclusion=conclusion))
        trials = store.trials("plain")
        for trial in [*trials, failed(trials[0], max(each.number for each in trials) + 1)]:
            store.add_trial(replace(trial, study="planted", label=f"of {OWN}", outcome=None, verdict=None))
            assert trial.outcome is not None
            argv = ("vllm", "serve", MODEL, *arguments, *trial.outcome.argv[3:])
            outcome = replace(trial.outcome, argv=argv, environment={**trial.outcome.environment, **variables})
            store.finish_trial("planted", trial.number, trial.round, outcome, trial.verdict)


def uri() -> str:
    return f"http://quentin:{PASSWORD}@mlflow.corp.example:5000"


def failed(like: TrialRecord, number: int) -> TrialRecord:
    """Return a failed trial whose log shows everything."""
    evidence = f"HF_TOKEN={TOKEN} in {MODEL}, {uri()}\nMY_API_KEY=abc, {OWN}"
    failure = Failure(FailureKind.ENGINE_CRASH, Phase.READY, f"cannot read {MODEL}, {PASSWORD}", evidence, 1)
    assert like.outcome is not None
    outcome = replace(like.outcome, repeats=(), server=None, failure=failure)
    return replace(like, number=number, round=0, kind=TrialKind.SEARCH, outcome=outcome, verdict=None)


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the user; a variable may have several URLs with passwords."""
    urls = f"{uri()} http://ann:another-one@mlflow"
    for name, value in {"HF_TOKEN": TOKEN, "MY_SECRET": OWN, "MLFLOW_TRACKING_URI": urls}.items():
        monkeypatch.setenv(name, value)


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as packed:
        assert packed.testzip() is None
        return {name: packed.read(name).decode() for name in packed.namelist()}


def test_a_bundle_has_the_report_the_trials_and_what_they_rest_on(folder: Path) -> None:
    printed = ran(folder, "study", "report", "plain", "--bundle")
    listed, last = printed.out.splitlines()[:-1], printed.out.splitlines()[-1]
    assert [line.split()[0] for line in listed] == [*ALWAYS[1:], "best_serve.sh"]
    assert last.startswith("wrote plain-bundle.zip; look through it, then attach it")
    found = contents(folder / "plain-bundle.zip")
    assert [*found] == [*ALWAYS, "best_serve.sh"]
    assert "<h1>plain</h1>" in found["report.html"]
    assert "Simulated, not measured" in found["report.html"]
    assert found["trials.csv"] == run_here(folder, "study", "trials", "plain", "--csv").out
    conclusion = json.loads(found["conclusion.json"])
    assert conclusion["winner"] == 0
    assert conclusion["would_help"][0].startswith("greedy decoding (temperature 0) with suffix speculation (changes")
    assert found["README.txt"].startswith("Simulated figures of the study plain")
    assert [line for line in listed if line.strip() not in found["README.txt"]] == []
    assert found["best_serve.sh"].startswith("#!/usr/bin/env bash\n# Simulated, not measured")


def test_parts_are_struck_by_name(folder: Path) -> None:
    struck = [word for name in ("report.html", "argv", "worker", "machines") for word in ("--leave-out", name)]
    printed = run_here(folder, "study", "report", "plain", "--bundle", "-o", "s.zip", *struck)
    assert (printed.code, "report.html" in printed.out) == (0, False)
    found = contents(folder / "s.zip")
    assert [*found] == ["README.txt", *ALWAYS[2:], "best_serve.sh"]
    columns = found["trials.csv"].partition("\n")[0].split(",")
    assert {"argv", "worker"} & {*columns} == set()
    assert {"number", "score", "device"} <= {*columns}
    assert "machines" not in json.loads(found["hardware.json"])
    assert "Left out: report.html, argv, worker, machines." in found["README.txt"]


def test_hardware_and_versions_are_those_that_the_study_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.gpu.host_facts", lambda: pytest.fail("the bundle asks this machine"))
    ran(folder, "study", "report", "plain", "--bundle", "-o", "h.zip")
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
        ran(folder, "study", "report", "plain", "--bundle", "-o", name)
    assert (folder / "a.zip").read_bytes() == (folder / "b.zip").read_bytes()
    with zipfile.ZipFile(folder / "a.zip") as packed:
        assert {entry.date_time for entry in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert packed.getinfo("best_serve.sh").external_attr >> 16 & 0o777 == 0o755


@pytest.mark.usefixtures("private")
def test_no_secret_is_in_the_archive_and_other_texts_stay(folder: Path) -> None:
    ran(folder, "study", "report", "planted", "--bundle", "-o", "planted.zip")
    found = contents(folder / "planted.zip")
    assert [*found] == [*ALWAYS, "best_serve.sh", "failures.txt"]
    assert [(name, each) for name, text in found.items() for each in (TOKEN, PASSWORD, OWN) if each in text] == []
    lines = found["failures.txt"].splitlines()
    assert re.fullmatch(r"#\d+ engine_crash \(configuration\), ready, exit code 1", lines[0])
    assert lines[1:] == [
        f"  cannot read {MODEL}, ${{MLFLOW_TRACKING_URI_PASSWORD}}",
        f"  | HF_TOKEN=${{HF_TOKEN}} in {MODEL}, http://quentin:***@mlflow.corp.example:5000",
        "  | MY_API_KEY=***, ${MY_SECRET}",
    ]


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        (("nothing", "--bundle"), "tuner: study 'nothing': the database has no study of this name"),
        (("plain", "planted", "--bundle"), "tuner: a bundle has one study, not 2; write one for each"),
        (("plain", "--bundle", "-o", "x.tar.gz"), "-o 'x.tar.gz': a bundle is a ZIP archive; give a name that ends in"),
        (("plain", "--bundle", "-o", "no/x.zip"), "the file cannot be written: No such file or directory"),
        (("plain", "--bundle", "--storage", "nothing.db"), "nothing.db"),
        (("plain", "--bundle", "--leave-out", "host"), "--leave-out 'host': the bundle has no file, column"),
        (("plain", "--leave-out", "argv"), "--leave-out strikes parts of a bundle; add --bundle"),
    ],
)
def test_mistakes_are_one_line(folder: Path, words: tuple[str, ...], rule: str) -> None:
    one_line(run_here(folder, "study", "report", *words), rule)


def test_the_users_files_stay_with_the_user(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "a made up prompt"}) + "\n")
    classes = "classes: {a: {output: 24, text: {file: prompts.jsonl}}}\n"
    (tmp_path / "load.yaml").write_text(f"arrivals: {{process: poisson, rate: 4}}\nrequests: 30\n{classes}")
    ran(tmp_path, *STUDY, "--study", "own", "--workload", "load.yaml")
    ran(tmp_path, "study", "report", "own", "--bundle")
    found = contents(tmp_path / "own-bundle.zip")
    assert "base64 -d" not in found["best_serve.sh"]
    assert "base64 -d" in (tmp_path / "best_serve.sh").read_text()  # the study's own script carries them
    assert [name for name, text in found.items() if "a made up prompt" in text] == []
