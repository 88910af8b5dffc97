"""What is removed from a text before it is passed on, and what stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.use_cases.bundle.private_texts import PrivateTexts, users_in

TEXTS = PrivateTexts(
    secrets={"HF_TOKEN": "made-up-7f3a", "STORAGE_PASSWORD": "p@ss/wörd"},
    folders=("/srv/study of alice/tuner_study", "/root"),
    users=("alice", "root", "bo"),
    hosts=("gpu-box-17.corp.example", "gpu-box-17"),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token made-up-7f3a was refused", "token ${HF_TOKEN} was refused"),
        ("connects with p@ss/wörd now", "connects with ${STORAGE_PASSWORD} now"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("{'api_key': 'abc', 'model': 'm'}", "{'api_key': '***', 'model': 'm'}"),
        ("{'api_key': ['abc']}", "{'api_key': ['***']}"),
        ('"hf-token": "abc"', '"hf-token": "***"'),
        ("--api-key abc --port 8000", "--api-key *** --port 8000"),
        ("Authorization: Bearer abcdef123", "Authorization: Bearer ***"),
        ("login hf_abcdefghijklmnop failed", "login *** failed"),
        ("postgresql://bob:geheim@db.corp.example/t", "postgresql://…"),
        ("http://mlflow.corp.example:5000/#/x", "http://…"),
        ("file:///data/x/model.bin", "file:…/model.bin"),
        ("a read from 10.20.30.41:29500", "a read from ADDRESS:29500"),
        ("ask bob.smith@corp.example", "ask USER@HOST"),
    ],
)
def test_secrets_and_addresses_are_removed(text: str, expected: str) -> None:
    assert TEXTS.clean(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/study of alice/tuner_study/artifacts/s/0/server.log", "…/server.log"),
        ("No such file: '/home/carol/models/q'", "No such file: '…/q'"),
        ("/home/carol", "…"),
        ("~/models/q and ~carol/q and ~carol", "…/q and …/q and …"),
        ("/Users/carol/q", "…/q"),
        ("/root/clients/acme/q.bin", "…/q.bin"),
        ("-I/home/carol/include", "-I…/include"),
        ("/data/projects/secret-client/weights.bin", "…/weights.bin"),
        ("PermissionError:/var/lib/x", "PermissionError:…/x"),
        ("/opt/v/lib/python3.12/site-packages/vllm/engine.py:12", "…/site-packages/vllm/engine.py:12"),
        ("/root/.cache/huggingface/hub", "…/hub"),
        ("user alice on GPU-BOX-17", "user USER on HOST"),
        ("gpu-box-17.corp.example: lost", "HOST: lost"),
        ("alice-llama_alice", "USER-llama_USER"),
    ],
)
def test_paths_and_names_are_removed(text: str, expected: str) -> None:
    assert TEXTS.clean(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Qwen/Qwen2.5-0.5B",
        "vllm serve Qwen/Qwen2.5-0.5B --max-num-batched-tokens 8192 --api-key '${VLLM_API_KEY}'",
        "output 3,541 tok/s; 12 / 4 requests/s",
        "joules_per_output_token:40 and output_token: 0.25",
        "eos_token: None, max_tokens=512",
        "GET /v1/completions and /health on http://127.0.0.1:8000/v1",
        "see https://docs.vllm.ai/en/latest/usage/",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1 and /dev/shm/x",
        "CUDA out of memory at 13:45:12, vLLM 0.15.1, driver 580.95.05, root",
        "malice, bo and allice stay",
        "keep the defaults: no finalist is better beyond the noise",
    ],
)
def test_what_a_reader_needs_stays(text: str) -> None:
    assert TEXTS.clean(text) == text


def test_a_json_value_keeps_its_form() -> None:
    value = {"alice": ["/home/x/m", 3, None, True], "b": {"c": "alice"}}
    assert TEXTS.walk(value) == {"alice": ["…/m", 3, None, True], "b": {"c": "USER"}}


def test_users_are_found_in_paths() -> None:
    assert users_in(["/home/dora/x:/Users/emil", "/tmp/home/fritz/y", "home/x"]) == {"dora", "emil", "fritz"}


@given(st.text(), st.text(), st.sampled_from(["made-up-7f3a", "/home/alice", "gpu-box-17", "p@ss/wörd"]))
def test_no_surrounding_text_brings_a_value_back(before: str, after: str, private: str) -> None:
    cleaned = TEXTS.clean(f"{before} {private} {after}")
    assert not [value for value in TEXTS.secrets.values() if value in cleaned]
    assert "/home/alice" not in cleaned
    assert " gpu-box-17 " not in cleaned


@given(st.text())
def test_cleaning_ends_and_a_clean_text_stays_clean(text: str) -> None:
    once = TEXTS.clean(text)
    assert TEXTS.clean(TEXTS.clean(once)) == TEXTS.clean(once)


@pytest.mark.parametrize("part", ["a", "a-", "/a", "a.", "~", "key=", "a@", "://", "1."])
def test_a_long_text_takes_no_long_time(part: str) -> None:
    began = time.process_time()
    TEXTS.clean(part * (100_000 // len(part)))
    assert time.process_time() - began < 10
