"""Prompts for a server of unknown make: what makes them, and that no two servers of a study are sent the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gguf_model import write_model
from tuner.engines.openai.engine import TrialPrompts, find_tools, has_other_length
from tuner.engines.server import token_prompts
from tuner.engines.server.token_prompts import TokenTools
from tuner.errors import SettingError
from tuner.processes.records import ProcessRecords
from tuner.workloads.results import RequestRecord, RequestStatus

REQUESTS: list[dict[str, Any]] = [
    {"shared": [["system", 8]], "tokens": 20, "seed": 5, "text": "random"},
    {"shared": [["system", 8]], "tokens": 20, "seed": 6, "text": "random"},
    {"shared": [], "prompt": "a text of the user's", "answer": None},
]


def made(folder: Path, key: str) -> list[Any]:
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"tokenizer": "unused", "requests": REQUESTS}))
    tools = TokenTools(range(100, 1000), ProcessRecords(folder), lambda text, _: [len(text)])
    return list(TrialPrompts(tools, key).prompts(plan, folder / "log"))


def test_servers_are_sent_prompts_of_the_same_lengths_and_other_words(tmp_path: Path) -> None:
    """A cache of answers that outlives a server would otherwise answer all trials but the first."""
    (one, *_), (two, *_), (own, *_) = first = made(tmp_path, "study/0")
    (other, *_), _, (own_again, *_) = second = made(tmp_path, "study/1")
    assert [count for _, count, _ in first] == [count for _, count, _ in second] == [28, 28, 1]
    assert one[:8] == two[:8], "requests to one server share what the workload says"
    assert one[:8] != other[:8]
    assert one[8:] != other[8:]
    assert own == own_again, "a user's own text is sent as it is"


def test_the_same_server_is_sent_the_same_prompts(tmp_path: Path) -> None:
    assert made(tmp_path, "study/0") == made(tmp_path, "study/0")


def test_a_gguf_file_makes_prompts_of_token_ids(tmp_path: Path) -> None:
    file = write_model(tmp_path / "made.gguf")
    assert isinstance(find_tools(str(file), "", ProcessRecords(tmp_path), None), TokenTools)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        find_tools(str(tmp_path), "", ProcessRecords(tmp_path), None)
    assert str(caught.value) == (
        f"tokenizer={str(tmp_path)!r}: there is no tokenizer.json; "
        "give the model's by tokenizer: a folder with tokenizer.json, a hub name, or a GGUF file"
    )


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise token_prompts._no_package(None)

    monkeypatch.setattr("tuner.engines.openai.engine.find_tokenizer", none)
    with pytest.raises(SettingError, match="the package `tokenizers`, which makes the prompts, is not installed"):
        find_tools("m", "", ProcessRecords(tmp_path), None)


@pytest.mark.parametrize(
    ("planned", "counted", "other"),
    [
        (24, 24, False),
        (24, 32, False),  # eight tokens of a beginning
        (24, 33, True),
        (24, 12, True),
        (1000, 1050, False),  # 5 %
        (1000, 949, True),
        (24, None, False),
        (None, 24, False),
    ],
)
def test_a_prompt_that_the_server_counts_otherwise_is_found(
    planned: int | None, counted: int | None, other: bool
) -> None:
    record = RequestRecord(0, "all", RequestStatus.COMPLETED, planned, 8, input_tokens=counted)
    assert has_other_length(record) is other
