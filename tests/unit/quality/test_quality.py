"""Whether answers are kept: questions, graders, formats, pairs and agreement, against values by hand."""

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from tuner.engines.server.traffic import PlainJob
from tuner.errors import SettingError
from tuner.processes.records import ProcessRecords
from tuner.quality.ask import AskFailed, Target
from tuner.quality.compare import (
    AnswersVerdict,
    Pairs,
    Tripwire,
    clopper_pearson,
    compare_positions,
    kl_divergence,
    pair,
)
from tuner.quality.examiner import (
    FORMAT_FLAGS,
    Quality,
    built_in_texts,
    fact_of,
    formats_of,
    line_of,
    split_flags,
    texts_of,
    without_format_variables,
)
from tuner.quality.harness import HarnessTask, StartProgram, graded, harness_task
from tuner.quality.task import Question, read_task, right_answers
from tuner.scoring.goals import parse_slo

SLO = parse_slo("quality>=0.99")
TOKENS = "98.5 % of the most likely tokens agree, mean KL 0.0045 nats"


@pytest.mark.parametrize(
    ("tripwire", "pairs", "line"),
    [
        (
            Tripwire(194, 0.985, 0.0045),
            Pairs(both=1000, lost=0, gained=0, neither=0),
            f"kept for quality>=0.99 with fp8: quality 1.000 (95 % interval 0.996 to 1.004), 1000 questions; {TOKENS}",
        ),
        (
            Tripwire(194, 0.985, 0.0045),
            Pairs(both=50, lost=50, gained=0, neither=0),
            f"LOST for quality>=0.99 with fp8: quality 0.500 (95 % interval 0.385 to 0.680), 100 questions; {TOKENS}",
        ),
        (Tripwire(194, 0.985, 0.0045), None, f"compared without questions: with fp8, {TOKENS}"),
        (
            Tripwire(194, 0.5, 2.0),
            Pairs(both=1, lost=0, gained=0, neither=0),
            "BROKEN with fp8: 50.0 % of the most likely tokens agree, mean KL 2.0000 nats",
        ),
    ],
)
def test_one_line_says_what_was_found(tripwire: Tripwire, pairs: Pairs | None, line: str) -> None:
    assert line_of(fact_of(Quality(tripwire, pairs, (1.0, 1.0)), SLO), "fp8") == line


@pytest.mark.parametrize(
    ("argv", "kept", "taken"),
    [
        ("--quantization fp8 --block-size 32", "--block-size 32", "--quantization fp8"),
        ("--block-size 32 --quantization=fp8 --seed 1", "--block-size 32 --seed 1", "--quantization=fp8"),
        ("-q awq --enforce-eager", "--enforce-eager", "-q awq"),
        ("--kv_cache_dtype fp8", "", "--kv_cache_dtype fp8"),
        ("--speculative-config.method=ngram --seed 1", "--seed 1", "--speculative-config.method=ngram"),
        ("--seed 1", "--seed 1", ""),
    ],
)
def test_flags_are_taken_with_their_values(argv: str, kept: str, taken: str) -> None:
    assert split_flags(argv.split(), FORMAT_FLAGS) == (tuple(kept.split()), tuple(taken.split()))


def test_servers_with_the_same_formats_have_the_same_name() -> None:
    variables = {"VLLM_MARLIN_INPUT_DTYPE": "int8", "HF_HUB_OFFLINE": "1"}
    one = formats_of("m", ["--max-num-seqs", "8", "--quantization", "fp8"], variables)
    assert one == formats_of("m", ["--quantization", "fp8"], {"VLLM_MARLIN_INPUT_DTYPE": "int8"})
    assert one == "m --quantization fp8 VLLM_MARLIN_INPUT_DTYPE=int8"
    assert without_format_variables(variables) == {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def start(tmp_path: Path) -> StartProgram:
    """Starts recorded processes."""
    records = ProcessRecords(tmp_path / "processes")
    return lambda argv, environment, log, cwd: PlainJob(argv, environment, log, cwd, records)


TARGET = Target("http://127.0.0.1:8000/v1/completions", "m", {"Authorization": "Bearer key"})


def sample(doc: int, filtered: str = "none", **metrics: Any) -> dict[str, Any]:
    return {"doc_id": doc, "filter": filtered, "metrics": list(metrics), **metrics}


def samples(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "samples_t_2026.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def program(folder: Path, body: str) -> Path:
    """Write a stub of `lm_eval` that knows where results go."""
    file = folder / "lm_eval"
    found = 'while [ "$1" != --output_path ]; do shift; done; out=$2/m; mkdir -p "$out"'
    file.write_text(f'#!/bin/sh\nprintf "%s\\n" "$OPENAI_API_KEY" "$@"\n{found}\n{body}\n')
    file.chmod(0o755)
    return file


def test_answers_are_in_the_order_of_the_questions(tmp_path: Path) -> None:
    rows = (
        sample(2, exact_match=0.0),
        sample(0, exact_match=1.0),
        sample(1, exact_match=0.0),
        sample(10, exact_match=1),
    )
    assert list(graded(samples(tmp_path, *rows))) == [True, False, False, True]


def test_the_first_of_several_filters_counts(tmp_path: Path) -> None:
    rows = (
        sample(0, "strict", exact_match=0),
        sample(1, "strict", exact_match=1),
        sample(0, "flexible", exact_match=1),
    )
    assert list(graded(samples(tmp_path, *rows))) == [False, True]


def test_accuracy_counts_before_normalised_accuracy(tmp_path: Path) -> None:
    assert list(graded(samples(tmp_path, sample(0, acc_norm=0.0, acc=1.0)))) == [True]


@pytest.mark.parametrize(
    ("metrics", "part"),
    [({"bleu": 0.3}, "it has bleu"), ({"exact_match": 0.5}, "it has exact_match"), ({}, "it has none")],
)
def test_a_metric_that_is_neither_right_nor_wrong_is_refused(
    tmp_path: Path, metrics: dict[str, Any], part: str
) -> None:
    with pytest.raises(AskFailed, match=f"no metric that is right or wrong: {part}"):
        list(graded(samples(tmp_path, sample(0, **metrics))))


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"doc_id": "x", "exact_match": 1}'])
def test_a_hostile_file_of_samples_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "samples_t.jsonl"
    file.write_text(text)
    with pytest.raises(AskFailed, match="samples that cannot be read"):
        list(graded(file))


def test_the_program_gets_the_server_and_its_key(tmp_path: Path, start: StartProgram) -> None:
    row = json.dumps(sample(0, exact_match=1.0))
    task = HarnessTask(("gsm8k", "arc_easy"), program(tmp_path, f"echo '{row}' >\"$out/samples_gsm8k_1.jsonl\""))
    assert task.right(start, TARGET, "tok", tmp_path, threading.Event()) == [True]
    said = (tmp_path / "lm-eval.log").read_text().splitlines()
    assert said[0] == "key"
    assert said[said.index("--tasks") + 1] == "gsm8k,arc_easy"
    settings = dict(each.split("=", 1) for each in said[said.index("--model_args") + 1].split(","))
    assert (settings["base_url"], settings["model"], settings["tokenizer"]) == (TARGET.url, "m", "tok")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo no such task; exit 1", "lm_eval failed: no such task; its log is"),
        ("exit 0", "lm_eval asked no question"),
    ],
)
def test_a_program_that_fails_is_named_with_its_log(
    tmp_path: Path, start: StartProgram, body: str, message: str
) -> None:
    with pytest.raises(AskFailed, match=message):
        HarnessTask(("t",), program(tmp_path, body)).right(start, TARGET, "tok", tmp_path, threading.Event())


def test_a_cancelled_check_ends_the_program(tmp_path: Path, start: StartProgram) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(AskFailed, match="cancelled"):
        HarnessTask(("t",), program(tmp_path, "exec sleep 1000")).right(start, TARGET, "tok", tmp_path, stop)
    assert ProcessRecords(tmp_path / "processes").all() == []


def test_the_digest_follows_the_content_of_an_own_task(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    digests = set()
    for text in ("task: a", "task: b"):
        file.write_text(text)
        digests.add(HarnessTask((str(file),), tmp_path / "lm_eval").digest)
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [("lm-eval:", "names no task"), ("lm-eval:no/such.yaml", "no file"), ("lm-eval:gsm8k", "not installed")],
)
def test_tasks_that_cannot_be_asked_are_refused(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(SettingError, match=message):
        harness_task(text)


def test_questions_are_counted_by_who_is_right() -> None:
    pairs = pair([True, True, True, False, False], [True, False, False, True, False])
    assert pairs == Pairs(both=1, lost=2, gained=1, neither=1)
    assert (pairs.questions, pairs.flips) == (5, 3)
    assert (pairs.reference, pairs.candidate) == (0.6, 0.4)
    assert pairs.quality == pytest.approx(2 / 3)


def test_answers_of_different_questions_are_not_paired() -> None:
    with pytest.raises(ValueError, match="2 and 1 answers cannot be paired"):
        pair([True, False], [True])


def test_clopper_pearson_without_a_success_has_a_closed_form() -> None:
    assert clopper_pearson(0, 10, 0.05) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert clopper_pearson(10, 10, 0.05) == pytest.approx((0.025**0.1, 1.0))
    assert clopper_pearson(0, 0, 0.05) == (0.0, 1.0)


def test_without_a_flip_the_interval_is_that_of_no_flip() -> None:
    """P(no flip in 400) = 0.0125 at the share of flips 1 - 0.0125**(1/400) = 0.01090; all of them may be losses."""
    low, high = Pairs(both=400, lost=0, gained=0, neither=0).interval
    assert low == pytest.approx(1 - 0.010895, abs=1e-6)
    assert high == pytest.approx(1 + 0.010895, abs=1e-6)


def test_the_interval_is_relative_to_the_reference() -> None:
    low, _ = Pairs(both=200, lost=0, gained=0, neither=200).interval
    assert low == pytest.approx(1 - 2 * 0.010895, abs=1e-6)


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (Pairs(both=400, lost=0, gained=0, neither=0), AnswersVerdict.UNDECIDED),
        (Pairs(both=500, lost=0, gained=0, neither=0), AnswersVerdict.KEPT),
        (Pairs(both=490, lost=10, gained=0, neither=0), AnswersVerdict.UNDECIDED),
        (Pairs(both=450, lost=50, gained=0, neither=0), AnswersVerdict.LOST),
        (Pairs(both=10, lost=490, gained=0, neither=0), AnswersVerdict.LOST),
        (Pairs(both=440, lost=30, gained=30, neither=0), AnswersVerdict.UNDECIDED),
    ],
)
def test_the_verdict_follows_from_the_interval(pairs: Pairs, verdict: AnswersVerdict) -> None:
    assert pairs.verdict(0.99) is verdict


def test_as_many_gains_as_losses_are_no_loss() -> None:
    low, high = Pairs(both=440, lost=30, gained=30, neither=0).interval
    assert low < 1 < high


def written(folder: Path, text: str) -> str:
    file = folder / "task.jsonl"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_file_is_read(tmp_path: Path) -> None:
    lines = '{"prompt": "2+2=", "answer": 4}\n\n{"prompt": "a", "answer": "b", "regex": "x(.)", "max_tokens": 7}\n'
    task = read_task(written(tmp_path, lines))
    assert task.questions == (Question("2+2=", "4"), Question("a", "b", "x(.)", 7))
    assert [question.tokens for question in task.questions] == [9, 7]
    assert texts_of(task) == ("2+2=4", "ab")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file has no question"),
        ('{"prompt": "2+2="}', "line 1 has no answer"),
        ('{"answer": "4"}', "line 1 has no prompt"),
        ('{"prompt": "2+2=", "answer": "4"}\n[]', "line 2 is not a JSON object"),
        ("no", "line 1 is not JSON"),
        ('{"prompt": "a", "answer": "4", "regex": "("}', "line 1 has an invalid regex"),
        ('{"prompt": "a", "answer": "4", "regex": "a(?R)?a"}', "line 1 has an invalid regex"),
        (f'{{"prompt": "a", "answer": "4", "regex": "{"a" * 1001}"}}', "line 1 has a regex of more than 1,000"),
        ('{"prompt": "a", "answer": "4", "max_tokens": 0}', "line 1 has max_tokens 0"),
    ],
)
def test_a_mistake_names_its_line_and_the_remedy(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_task(written(tmp_path, text))
    assert reason in str(caught.value)
    assert 'write lines such as {"prompt": "2+2=", "answer": "4"}' in str(caught.value)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="not a file"):
        read_task(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("question", "text", "right"),
    [
        (Question("", "4"), " 4\n5+5=10", True),
        (Question("", "4"), "44", False),
        (Question("", "a\nb"), "a\nb ", True),
        (Question("", "12", r"#### (\d+)"), "3 * 4\n#### 11\n#### 12\n", True),
        (Question("", "12", r"\d+"), "7, so 12", True),
        (Question("", "12", r"#### (\d+)"), "12", False),
    ],
)
def test_grading(question: Question, text: str, right: bool) -> None:
    assert question.right(text) is right


def test_the_built_in_texts_are_short() -> None:
    texts = built_in_texts()
    assert len(texts) == 12
    assert all(50 <= len(text) <= 400 for text in texts)


@pytest.mark.parametrize("regex", [r"(a+)+b", r"(a+)\1+b"])
def test_a_regex_that_needs_too_long_is_the_users_mistake(regex: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.quality.task.REGEX_S", 0.05)
    with pytest.raises(SettingError) as caught:
        right_answers([Question("", "4", regex)], ["a" * 10_000])
    assert "needs more than 0.05 s for one answer; write it without repeats within repeats" in str(caught.value)


LN2 = math.log(2)


def top(**shares: float) -> list[tuple[int, float]]:
    """Return a position: shares of the tokens 1, 2, …, named t1, t2, …, the largest first."""
    tokens = [(int(name[1:]), math.log(share)) for name, share in shares.items()]
    return sorted(tokens, key=lambda token: -token[1])


def test_the_same_distribution_has_no_divergence() -> None:
    assert kl_divergence(top(t1=0.5, t2=0.25), top(t1=0.5, t2=0.25)) == pytest.approx(0, abs=1e-12)


def test_shared_tokens_and_one_class_for_the_rest() -> None:
    """P = 1/2, 1/4, rest 1/4 and Q = 1/4, 1/4, rest 1/2: ln 2 / 2 + 0 - ln 2 / 4."""
    assert kl_divergence(top(t1=0.5, t2=0.25), top(t1=0.25, t2=0.25)) == pytest.approx(LN2 / 4)


def test_an_unreported_token_has_no_more_than_the_least_reported_one() -> None:
    """P = 3/4 on token 1, rest 1/4. Q = 3/4 on 2, 1/8 on 3, so at most 1/8 on token 1: (3/4) ln 6 + (1/4) ln (2/7)."""
    expected = 0.75 * math.log(6) + 0.25 * math.log(2 / 7)
    assert kl_divergence(top(t1=0.75), top(t2=0.75, t3=0.125)) == pytest.approx(expected)


def test_an_unreported_token_that_fits_into_the_rest_adds_nothing() -> None:
    """P = 0.9, 0.1 and Q = 0.9 with a rest of 0.1, which may be token 2."""
    assert kl_divergence(top(t1=0.9, t2=0.1), top(t1=0.9)) == pytest.approx(0, abs=1e-9)


def test_positions_are_averaged() -> None:
    one, other = top(t1=0.5, t2=0.25), top(t2=0.5, t1=0.25)
    result = compare_positions([one, one], [one, other])
    assert result.agreement == 0.5
    assert result.kl == pytest.approx((0.5 * LN2 - 0.25 * LN2) / 2)


def test_other_numbers_of_positions_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="1 and 2 positions"):
        compare_positions([top(t1=1.0)], [top(t1=1.0), top(t1=1.0)])


@pytest.mark.parametrize(
    ("agreement", "kl", "broken"), [(0.98, 0.01, False), (0.71, 0.49, False), (0.69, 0.1, True), (0.9, 0.51, True)]
)
def test_only_another_distribution_is_broken(agreement: float, kl: float, broken: bool) -> None:
    assert Tripwire(100, agreement, kl).broken is broken
