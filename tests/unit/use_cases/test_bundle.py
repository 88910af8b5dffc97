"""What is removed from a text of a bundle, and what stays."""

from __future__ import annotations

import time

import pytest

from tuner.processes.secrets import Secrets
from tuner.use_cases.bundle import cleaned

SECRETS = Secrets({"HF_TOKEN": "made-up-7f3a", "STORAGE_PASSWORD": "p@ss/wörd"})


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
        ("postgresql://bob:geheim@db.corp.example/t", "postgresql://bob:***@db.corp.example/t"),
    ],
)
def test_secrets_are_removed(text: str, expected: str) -> None:
    assert cleaned({"a": [text, 3, None, True]}, SECRETS) == {"a": [expected, 3, None, True]}


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve Qwen/Qwen2.5-0.5B --max-num-batched-tokens 8192 --api-key '${VLLM_API_KEY}'",
        "joules_per_output_token:40 and output_token: 0.25",
        "eos_token: None, max_tokens=512",
        "No such file: '/home/carol/models/q' on gpu-box-17 (10.20.30.41)",
        "keep the defaults: no finalist is better beyond the noise",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert cleaned(text, SECRETS) == text


@pytest.mark.parametrize("part", ["a", "a-", "a.", "key=", "://"])
def test_a_long_text_takes_no_long_time(part: str) -> None:
    began = time.process_time()
    cleaned(part * (100_000 // len(part)), SECRETS)
    assert time.process_time() - began < 10
