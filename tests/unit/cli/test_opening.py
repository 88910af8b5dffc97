"""Checkpoints and a draft model that no configuration of a study uses are named, with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from search_spaces import Context, hardware_named, load_space
from tuner.cli.output.progress.lines import goal_lines, unused_models
from tuner.study.specification.resolve_workload import make_goals


@pytest.mark.parametrize(
    ("only", "keep_answers", "lines"),
    [
        (None, False, []),
        (
            ("max_num_seqs",),
            False,
            [
                "--checkpoint awq is not used: the study does not search the parameter quantization",
                "--draft-model is not used: the study does not search the parameter speculative",
            ],
        ),
        (
            None,
            True,
            ["--checkpoint awq is not used: it may change the model's answers, which the study excludes"],
        ),
    ],
)
def test_a_model_that_is_not_used(only: tuple[str, ...] | None, keep_answers: bool, lines: list[str]) -> None:
    models: dict[str, Any] = {"checkpoints": {"awq": "a/awq"}, "draft_model": "a/draft", "draft_kind": "model"}
    context = Context(hardware_named("h100"), "0.25.1", **models)
    space = load_space("vllm").resolve(context, only=only, keep_answers=keep_answers)
    assert list(unused_models(space)) == lines


def test_goals_are_shown_with_their_source_unless_the_user_gave_them() -> None:
    goals = make_goals(["output_throughput", "p99_ttft_ms"], ["p99_ttft_ms<2000"])
    weights = "output_throughput 40, p99_ttft_ms 15, success_rate 10"
    assert goal_lines(goals, {"slos": "preset chat", "objectives": ""}) == [
        "SLOs (preset chat; --slo replaces them): p99_ttft_ms<2000",
        f"score weights: {weights}",
    ]
    assert goal_lines(make_goals(["output_throughput"], []), {}) == [
        "score weights: output_throughput 40, success_rate 10"
    ]
