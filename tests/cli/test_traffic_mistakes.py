"""Mistakes in traffic: one line with the rule, the value and the next step, exit code 2, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import everything_in, refused, run_here
from tests.fakes import install_fake_vllm

HEAD = "arrivals: {process: poisson, rate: 4}\nrequests: 10\n"
CLASS = "classes: {a: {input: 4, output: 4}}\n"


@pytest.mark.parametrize("command", ["optimize", "capacity"])
@pytest.mark.parametrize(
    ("text", "files", "parts"),
    [
        (HEAD + "classes: {a: {weight: 0, input: 4, output: 4}}\n", {}, ("weights of the classes sum to 0",)),
        (
            HEAD + "classes: {a: {input: 90000, output: 4}}\nslo: {a: {p95_ttft_ms: 9}}\n",
            {},
            ("class 'a' has requests of up to 90004 tokens", "the model's context of", "lower its lengths"),
        ),
        (HEAD + "classes: {a: {text: {file: p.jsonl}, output: 4}}\n", {"p.jsonl": ""}, ("p.jsonl' is empty", "give")),
        (
            HEAD + "classes: {a: {text: {file: p.jsonl}, output: 4}}\n",
            {"p.jsonl": '{"prompt": "x"}\n{"prompt": \n'},
            ("p.jsonl:2: not JSON", "give lines such as"),
        ),
        (
            "arrivals: {process: trace, file: times.txt}\n" + CLASS,
            {"times.txt": "1\n3\n2\n"},
            ("times.txt:3: 2 s follows 3 s; sort the trace",),
        ),
        (HEAD + CLASS + "slo: {b: {ttft_ms: 4}}\n", {}, ("there is no class 'b'", "classes: a")),
        (HEAD, {}, ("classes: this key is missing; add it, as docs/workloads.md shows",)),
        (HEAD + f"classes: {{a: {{input: {'9' * 5000}}}}}\n", {}, ("traffic.yaml:3: not valid YAML", "correct that")),
    ],
)
def test_a_traffic_file_that_cannot_be_used(
    folder: Path, tmp_path: Path, model: Path, command: str, text: str, files: dict[str, str], parts: tuple[str, ...]
) -> None:
    for name, content in {**files, "traffic.yaml": text}.items():
        (tmp_path / name).write_text(content)
    vllm = install_fake_vllm(tmp_path / "bin")
    printed = run_here(
        folder, command, "--vllm", str(vllm), "--model", str(model), "--workload", str(tmp_path / "traffic.yaml")
    )
    refused(printed, folder, *parts)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["optimize", "--rate", "5"], "--rate 5: a closed loop has no rate"),
        (["capacity", "--preset", "chat", "--rate", "0"], "a rate of 0 requests/s is not possible"),
        (
            ["optimize", "--objective", "goodput"],
            "--objective 'goodput': this metric needs traffic; give traffic by --workload",
        ),
        (["optimize", "--objective", "capacity"], "--objective 'capacity': this metric needs traffic"),
        (
            ["capacity", "--preset", "system-prompt"],
            "--objective 'capacity': a capacity search needs one traffic file",
        ),
        (["capacity", "--preset", "nothing"], "--preset 'nothing': no preset has this name"),
        (["load"], "exactly one of --workload, --preset and --study"),
        (["load", "--preset", "qwen2.5-0.5b-t4"], "run `vllm bench serve` instead"),
        (["load", "--preset", "chat", "--url", "http://127.0.0.1:9"], "no OpenAI-compatible server answers there"),
    ],
)
def test_an_option_that_does_not_fit(folder: Path, tmp_path: Path, model: Path, argv: list[str], part: str) -> None:
    vllm = install_fake_vllm(tmp_path / "bin")
    extra = [] if argv[0] == "load" else ["--model", str(model)]
    printed = run_here(folder, *argv, "--vllm", str(vllm), *extra)
    assert (printed.code, part in printed.err) == (2, True), printed.err
    assert len(printed.err.splitlines()) == 1
    assert everything_in(folder) == []
