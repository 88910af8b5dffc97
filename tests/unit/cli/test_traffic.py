"""`tuner tradeoff` and `tuner requests` over a study that was written by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import FailureKind, StudyRecord, TrialKind, TrialOutcome, Verdict
from storage.store import Store, open_store
from tests import store_samples as samples
from tests.cli.command import run_here
from tuner.loadgen.result import write_records
from tuner.workloads.results import RequestRecord, RequestStatus

CLASSES = {"chat": {"weight": 1.0}, "docs": {"weight": 1.0}}
SLO = {"chat": {"ttft_ms": 5000.0}}
RATES = """\
rate,held,missed,offered,completed,success_rate,goodput_share,goodput,p50_ttft_ms,p95_ttft_ms,p99_ttft_ms,p95_tpot_ms
64,False,p95_ttft_ms<1000,100,0,0,0,,,,,
16,True,,100,100,1,0.9999,16,41.5,103.5,114.25,22.5
"""


def made(store: Store, name: str, workload: Mapping[str, Any], objective: str = "goodput:1") -> StudyRecord:
    record = replace(samples.study(name), premise={"workload": dict(workload), "objectives": [objective]})
    store.create_study(record)
    return record


def finish(
    store: Store, study: str, number: int, outcome: TrialOutcome, config: dict[str, Any], round: int = 0
) -> None:
    kind = TrialKind.CONFIRM if round else TrialKind.SEARCH if number else TrialKind.BASELINE
    record = replace(samples.pending(number, round, study, kind), config=config)
    store.add_trial(record)
    store.begin_attempt(study, number, round)
    verdict = None if outcome.failure else Verdict({"goodput": 1.0}, {}, 1.0 + number / 10)
    store.finish_trial(study, number, round, outcome, verdict)


def served(chat: float, docs: float, artifacts: Path | str = "nowhere") -> TrialOutcome:
    shares = {"chat": chat, "docs": docs, "worst": min(chat, docs)}
    metrics = {f"{name}.goodput_share": share for name, share in shares.items()}
    repeat = replace(samples.repeat(0), metrics=metrics | {"goodput_share": (chat + docs) / 2})
    return replace(samples.success(repeat), artifacts=str(artifacts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose database holds studies of several loads."""
    folder = tmp_path_factory.mktemp("traffic")
    (folder / "tuner_study").mkdir()
    store = open_store(f"sqlite:///{folder / 'tuner_study' / 'tuner.db'}")
    logs = folder / "t1"
    logs.mkdir()
    write_records(
        logs / "requests-0.parquet",
        [
            RequestRecord(0, "chat", RequestStatus.COMPLETED, planned_input=50),
            RequestRecord(1, "chat", RequestStatus.TIMED_OUT, planned_input=70),
            RequestRecord(2, "docs", RequestStatus.NOT_SENT),
        ],
    )
    (logs / "capacity.csv").write_text(RATES)
    made(store, "mixed", {"classes": CLASSES, "slo": SLO})
    finish(store, "mixed", 0, served(0.25, 0.5), {})
    finish(store, "mixed", 1, served(1.0, 0.5, logs), {"max_num_seqs": 64})
    finish(store, "mixed", 1, served(0.8, 0.7), {"max_num_seqs": 64}, round=1)
    finish(store, "mixed", 2, replace(samples.failed(), artifacts=str(logs.parent)), {"max_num_seqs": 512})
    store.update_study("mixed", conclusion={"winner": 1})
    made(store, "without-slo", {"classes": CLASSES, "slo": {}})
    made(store, "new", {"classes": CLASSES, "slo": SLO}, "capacity:1")
    made(store, "many", {"classes": CLASSES, "slo": SLO}, "capacity:1")
    for number in range(20):
        crashed = replace(samples.failed(FailureKind.ENGINE_CRASH))
        finish(store, "many", number, crashed if number == 3 else served(0.5, number / 20), {"max_num_seqs": number})
    made(store, "easy", {"classes": CLASSES, "slo": SLO})
    made(store, "even", {"classes": CLASSES, "slo": SLO})
    for number in range(2):
        finish(store, "easy", number, served(1.0, 1.0), {"max_num_seqs": number})
        finish(store, "even", number, served(1.0, 0.5 + number / 4), {"max_num_seqs": number})
    finish(store, "easy", 2, samples.failed(), {})
    made(store, "closed", {"max_concurrency": 50, "num_prompts": 200})
    finish(store, "closed", 0, samples.success(), {})
    store.close()
    return folder


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()]


def test_the_matrix_marks_the_best_of_a_row(folder: Path) -> None:
    output = run_here(folder, "tradeoff", "--study", "mixed")
    assert (output.code, output.err) == (0, "")
    found = lines(output.out)
    assert output.out.startswith("mixed (measured): share of offered requests within their SLO\n")
    assert found[1:3] == [["failed"], ["class", "#0", "#1", "#2"]]
    assert ["chat", "25%", "80%*", "–"] in found
    assert ["docs", "50%", "70%*", "–"] in found
    assert ["worst", "25%", "70%*", "–"] in found
    assert ["all", "37.5%", "75%*", "–"] in found
    assert "#1 max_num_seqs=64\n" in output.out
    assert "#2 max_num_seqs=512 (out_of_memory_startup)\n" in output.out
    assert "capacity" not in output.out


def test_a_matrix_without_a_difference_is_one_line(folder: Path) -> None:
    assert run_here(folder, "tradeoff", "--study", "easy").out == (
        "easy (measured): all requests of all 2 measured configurations were within their SLO, and 1 failed; raise the "
        "rate, tighten `slo:`, or find the highest rate with `tuner capacity`\n"
    )


def test_a_row_of_equal_shares_has_no_mark(folder: Path) -> None:
    found = lines(run_here(folder, "tradeoff", "--study", "even").out)
    assert ["chat", "100%", "100%"] in found
    assert ["docs", "50%", "75%*"] in found


def test_the_matrix_for_programs(folder: Path) -> None:
    output = run_here(folder, "tradeoff", "--study", "mixed", "--csv")
    assert output.out.splitlines() == [
        "class,#0 defaults,#1 max_num_seqs=64,#2 max_num_seqs=512 (out_of_memory_startup),best",
        "chat,0.25,0.8,,#1",
        "docs,0.5,0.7,,#1",
        "worst,0.25,0.7,,#1",
        "all,0.375,0.75,,#1",
    ]
    document = json.loads(run_here(folder, "tradeoff", "--study", "mixed", "--json").out)
    assert (document["study"], document["provenance"]) == ("mixed", "measured")
    assert document["best"] == {"chat": [1], "docs": [1], "worst": [1], "all": [1]}
    assert document["configurations"][2] == {
        "trial": 2,
        "configuration": "max_num_seqs=512",
        "state": "failed",
        "failure": "out_of_memory_startup",
        "score": None,
        "shares": {"chat": None, "docs": None, "worst": None, "all": None},
    }


def test_many_configurations_are_cut_on_the_terminal_only(folder: Path) -> None:
    output = run_here(folder, "tradeoff", "--study", "many")
    header = next(line for line in lines(output.out) if line[0] == "class")
    assert header == ["class", "#0", *(f"#{number}" for number in range(9, 20))]
    assert "8 more, 1 of them failed (engine_crash 1): --csv has all\n" in output.out
    assert "each configuration was measured at its own capacity" in output.out
    assert run_here(folder, "tradeoff", "--study", "many", "--csv").out.splitlines()[0].count(",") == 21


def test_requests_of_the_winner_and_its_rates(folder: Path) -> None:
    output = run_here(folder, "requests", "--study", "mixed")
    assert (output.code, output.err) == (0, "")
    found = lines(output.out)
    assert output.out.startswith("mixed #1 (measured): requests of 1 benchmark by planned prompt length\n")
    assert found[1] == ["class", "tokens", "offered", "completed", "not", "sent", "timed", "out"]
    assert found[3:7] == [
        ["chat", "1–64", "1", "1", "0", "0"],
        ["chat", "65–128", "1", "0", "0", "1"],
        ["docs", "unknown", "1", "0", "1", "0"],
        ["all", "3", "1", "1", "1"],
    ]
    assert ["16", "100", "100", "41.5", "103.5", "114.2", "22.5", "99.9%", "held,", "the", "capacity"] in found
    assert ["64", "100", "0", "–", "–", "–", "–", "0%", "missed", "p95_ttft_ms<1000"] in found


def test_requests_for_programs(folder: Path) -> None:
    output = run_here(folder, "requests", "--study", "mixed", "--trial", "1", "--csv")
    assert output.out.splitlines() == [
        "class,from,to,offered,completed,not_sent,timed_out",
        "chat,1,64,1,1,0,0",
        "chat,65,128,1,0,0,1",
        "docs,,,1,0,1,0",
    ]


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["tradeoff", "--study", "closed"], ["'closed' has no request classes", "--workload FILE"]),
        (["requests", "--study", "closed"], ["'closed' has no request classes", "--workload FILE"]),
        (
            ["tradeoff", "--study", "without-slo"],
            ["'without-slo' have no SLO", "`slo:`", "`tuner requests`"],
        ),
        (["tradeoff", "--study", "new"], ["'new' has no finished trial"]),
        (["tradeoff", "--study", "mixed", "--csv", "--json"], ["exclude each other"]),
        (["tradeoff", "--study", "nothing"], ["'nothing'", "mixed"]),
        (["requests", "--study", "mixed", "--trial", "9"], ["has no trial 9;", "`tuner trials`"]),
        (["requests", "--study", "mixed", "--trial", "1", "--round", "1"], ["trial 1 round 1", "nowhere", "host:gpu0"]),
        (["requests", "--study", "mixed", "--trial", "2"], ["out_of_memory_startup in ready", "`tuner show 2`"]),
        (["requests", "--study", "many"], ["trial 0 has no recorded requests in nowhere"]),
    ],
)
def test_mistakes_are_one_line(folder: Path, argv: list[str], parts: list[str]) -> None:
    output = run_here(folder, *argv)
    assert (output.code, output.out) == (2, "")
    assert output.err.count("\n") == 1
    assert [part for part in parts if part not in output.err] == []
