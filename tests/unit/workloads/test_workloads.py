"""The load and the presets."""

from pathlib import Path

import pytest

from tuner.errors import UserError
from tuner.workloads.presets import load_preset, preset_names
from tuner.workloads.spec import ClosedLoop


def test_the_default_preset_is_the_published_load() -> None:
    preset = load_preset("qwen2.5-0.5b-t4")
    load = preset.workload
    assert preset.model == "Qwen/Qwen2.5-0.5B"
    assert (load.max_concurrency, load.num_prompts, load.input_len, load.output_len) == (50, 200, 512, 512)
    assert load.temperature is None
    assert preset.objectives == ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
    assert preset.slos == ("p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1")


def test_the_greedy_twin_differs_in_temperature_only() -> None:
    sampled, greedy = load_preset("qwen2.5-0.5b-t4"), load_preset("qwen2.5-0.5b-t4-greedy")
    assert greedy.workload == sampled.workload.model_copy(update={"temperature": 0.0})
    assert (greedy.slos, greedy.objectives, greedy.model) == (sampled.slos, sampled.objectives, sampled.model)


def test_every_repeat_and_the_warm_up_send_other_prompts() -> None:
    load = ClosedLoop()
    seeds = [load.repeat_seed(i) for i in range(5)]
    assert seeds == [1000, 1001, 1002, 1003, 1004]
    warm = load.warmup()
    assert warm.seed not in seeds
    assert (warm.num_prompts, warm.output_len, warm.max_concurrency) == (50, 32, 50)


@pytest.mark.parametrize(
    ("users", "prompts", "share", "expected"),
    [
        (50, 200, 0.5, 100),
        (50, 200, 0.1, 100),  # two requests a user
        (50, 1000, 0.3334, 334),
        (10, 200, 0.1, 100),  # a 99th percentile of fewer says nothing
        (50, 90, 0.5, 90),  # never longer than it was
        (50, 200, 1.0, 200),
    ],
)
def test_a_shorter_load_keeps_two_requests_a_user_and_a_hundred(
    users: int, prompts: int, share: float, expected: int
) -> None:
    load = ClosedLoop(max_concurrency=users, num_prompts=prompts)
    assert load.shortened(share) == load.model_copy(update={"num_prompts": expected})


def test_the_longest_request_counts_prompt_and_answer() -> None:
    assert ClosedLoop(input_len=512, output_len=512).longest_request == 1024


def test_an_unknown_preset_names_a_near_one() -> None:
    with pytest.raises(UserError, match=r"did you mean qwen2\.5-0\.5b-t4"):
        load_preset("qwen2.5-0.5b-t5")
    assert {"qwen2.5-0.5b-t4", "qwen2.5-0.5b-t4-greedy", "mixed", "chat"} <= set(preset_names())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("description: [", r"mine\.yaml:1: not YAML"),
        ("model: m\n", r"mine\.yaml: description: Field required"),
        ("- 1\n", r"mine\.yaml: a preset is a mapping"),
    ],
)
def test_a_bad_preset_file_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        load_preset(str(file))
