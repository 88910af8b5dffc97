"""A database that version 0.1.0 wrote: today's commands read its studies and continue them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.cli.command import CommandOutput, run_here

DUMP = Path(__file__).parents[1] / "data" / "database-0.1.0.sql"
PLACEHOLDER = "FOLDER_OF_THE_STUDY"

FINISHED = (
    *("--study", "finished", "--preset", "qwen2.5-0.5b-t4-greedy", "--engine", "simulated", "--sampler", "residual"),
    *("--only", "max_num_seqs", "--only", "speculative", "--only", "suffix_tokens", "--only", "async_scheduling"),
    *("--finalists", "1", "--confirm-rounds", "3", "--baseline-repeats", "2", "--workers", "1", "--plain", "--json"),
)
STOPPED = (
    *("--study", "stopped", "--preset", "chat", "--model", "Qwen/Qwen2.5-0.5B", "--gpu", "t4", "--engine", "simulated"),
    *("--only", "max_num_seqs", "--only", "performance_mode", "--only", "async_scheduling"),
    *("--finalists", "1", "--confirm-rounds", "1", "--baseline-repeats", "1", "--workers", "1", "--plain", "--json"),
)
"""The command lines of tests/data/README.md, without `--trials`."""

FINISHED_SCORES = [
    1.0,
    1.1187719083188479,
    None,
    0.4786919210521196,
    1.120084712782229,
    0.8496910045064159,
    0.44428399438321475,
    1.0028595783680498,
]
STOPPED_SCORES = [
    1.0,
    0.6973600146552942,
    1.0012834827468342,
    0.8439460091129546,
    0.8878090342210525,
    0.025726981984796324,
]
"""Scores that version 0.1.0 printed for the trials of the search, in their order."""

COMMAND = (
    "vllm serve Qwen/Qwen2.5-0.5B --override-generation-config '{\"temperature\": 0.0}' --max-num-seqs 982"
    ' --speculative-config \'{"method":"suffix","num_speculative_tokens":2}\''
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the database where `tuner` looks for it."""
    (tmp_path / "tuner_study").mkdir()
    script = DUMP.read_text(encoding="utf-8").replace(PLACEHOLDER, str(tmp_path))
    with closing(sqlite3.connect(tmp_path / "tuner_study" / "tuner.db")) as connection:
        connection.executescript(script)
    return tmp_path


def read(folder: Path, *argv: str) -> Any:
    """Return the JSON document that a command prints."""
    return json.loads(succeeded(run_here(folder, *argv, "--json")).out)


def succeeded(output: CommandOutput) -> CommandOutput:
    assert output.code == 0, output.err
    return output


def search_trials(folder: Path, study: str) -> list[dict[str, Any]]:
    """Return the trials of the search, without the rounds of the confirmation and without smaller forms."""
    return [row for row in read(folder, "trials", "--study", study) if row["round"] == 0 and row["kind"] != "reduced"]


def configurations(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the configuration of each trial by its number."""
    return {row["number"]: {key: row[key] for key in row if key.startswith("config.")} for row in rows}


def optuna_trials(folder: Path, study: str) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=study, storage=f"sqlite:///{folder}/tuner_study/tuner.db").trials


def test_studies_lists_both(folder: Path) -> None:
    rows = {row["study"]: row for row in read(folder, "studies")}
    assert set(rows) == {"finished", "stopped"}
    finished, stopped = rows["finished"], rows["stopped"]
    assert (finished["trials"], finished["remeasurements"], finished["winner"]) == (8, 6, 4)
    assert (finished["provenance"], finished["model"], finished["hardware"]) == (
        *("simulated", "Qwen/Qwen2.5-0.5B", "Tesla T4"),
    )
    assert finished["reason"] == (
        "trial 4 beats the defaults beyond the noise: score 1.086 (95 % interval 1.010 to 1.168) in 3 rounds"
    )
    assert (stopped["trials"], stopped["remeasurements"], stopped["winner"], stopped["reason"]) == (6, 0, None, None)


def test_best_is_the_winner_of_then(folder: Path) -> None:
    best = read(folder, "best", "--study", "finished")
    assert (best["winner"], best["confirmed"], best["command"]) == (4, True, COMMAND)
    assert best["contenders"][0]["score"] == {
        "ratio": 1.0864998745202454,
        "low": 1.0102609822810433,
        "high": 1.1684921005927875,
        "rounds": 3,
    }
    page = succeeded(run_here(folder, "best", "--study", "finished")).out
    assert page.startswith("trial 4 beats the defaults beyond the noise: score 1.086 (95 % interval 1.010 to 1.168)")


def test_trials_have_the_same_scores(folder: Path) -> None:
    rows = search_trials(folder, "finished")
    assert [row["score"] for row in rows] == FINISHED_SCORES
    assert [row["state"] for row in rows] == [
        *("ok", "infeasible", "failed", "infeasible", "ok", "ok", "infeasible", "ok"),
    ]
    assert (rows[2]["failure_kind"], rows[2]["failure_culprit"]) == ("invalid_configuration", "configuration")
    rounds = [row for row in read(folder, "trials", "--study", "finished") if row["round"]]
    assert sorted((row["number"], row["round"]) for row in rounds) == [(n, r) for n in (0, 4) for r in (1, 2, 3)]


def test_show_prints_one_trial(folder: Path) -> None:
    (row,) = read(folder, "show", "3", "--study", "finished")
    assert (row["number"], row["score"], row["p99_ttft_ms"]) == (3, 0.4786919210521196, 11922.484368372801)
    assert (row["config.max_num_seqs"], row["config.speculative"]) == (13, "off")
    page = succeeded(run_here(folder, "show", "3", "--study", "finished")).out
    assert "SLOs           p99_tpot_ms<50 met, p99_ttft_ms<2000 MISSED, success_rate>=1 met" in page


def test_export_writes_the_winner(folder: Path) -> None:
    succeeded(run_here(folder, "export", "--study", "finished"))
    script = (folder / "best_serve.sh").read_text(encoding="utf-8")
    assert "--max-num-seqs 982" in script
    assert "speculative=suffix: score ×1.68 [0.81, 3.49]" in script


def test_a_report_shows_both(folder: Path) -> None:
    for study in ("finished", "stopped"):
        succeeded(run_here(folder, "report", study, "-o", "old.html"))
        assert f"<h1>{study}</h1>" in (folder / "old.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("without_mlflow")
def test_a_finished_study_takes_no_price(folder: Path) -> None:
    output = run_here(folder, "optimize", *FINISHED, "--trials", "10", "--price", "0.35")
    assert (output.code, output.out) == (2, "")
    rule = "the study 'finished' has no price; leave it out, or give another --study"
    assert f"tuner: --price 0.35: {rule}\n" in output.err
