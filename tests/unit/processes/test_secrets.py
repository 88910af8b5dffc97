from __future__ import annotations

import pytest

from tuner.processes.secrets import (
    Secrets,
    is_secret_flag,
    is_secret_variable,
    mask_url_passwords,
    shell_word,
    url_passwords,
)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "OPENAI_APIKEY", "my_password", "GCP_CREDENTIALS"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_variable(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "VLLM_MAX_TOKENS", "VLLM_CPU_KVCACHE_SPACE", "KEYBOARD"])
def test_other_names(name: str) -> None:
    assert not is_secret_variable(name)


def test_names_of_flags() -> None:
    assert all(map(is_secret_flag, ("--api-key", "--hf-token", "--hf_token", "--ssl-keyfile-password")))
    others = ("--tokenizer", "--max-num-batched-tokens", "--long-prefill-token-threshold", "--ssl-keyfile", "-q")
    assert not any(map(is_secret_flag, others))


def test_passwords_of_urls() -> None:
    text = "postgresql://me:pa%40ss@host:5432/db?sslpassword=other&x=1 http://host:8000/v1 http://me:${PW}@host"
    assert url_passwords(text) == ["pa%40ss", "other"]
    assert mask_url_passwords("postgresql://me:pw@h/d?password=x&y=1") == "postgresql://me:***@h/d?password=***&y=1"
    assert mask_url_passwords("http://host:8000/v1") == "http://host:8000/v1"


def test_references_are_expanded_and_values_replaced() -> None:
    secrets = Secrets({"A": "value-of-a", "B": "value-of-a-and-more", "C": "short"})
    assert secrets.expand("x ${A} ${B} ${D} $A") == "x value-of-a value-of-a-and-more ${D} $A"
    assert secrets.redact("value-of-a-and-more value-of-a short") == "${B} ${A} short"
    assert secrets.redact_bytes(b"\xffvalue-of-a") == b"\xff${A}"
    assert "value" not in repr(secrets)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("${A}", '"${A}"'),
        ("a b${A}$(x)", "'a b'\"${A}\"'$(x)'"),
        ("${B}", "'${B}'"),
        ("", "''"),
        ("plain", "plain"),
    ],
)
def test_words_of_a_shell(text: str, quoted: str) -> None:
    assert shell_word(text, {"A"}) == quoted
