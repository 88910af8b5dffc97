"""The program that tunes kernels of experts: what it tries and what it keeps, without a GPU."""

import pytest

from tuner.engines.vllm.resident import tune_experts
from tuner.engines.vllm.resident.tune_experts import candidates, tune


def test_tiles_hold_whole_blocks_of_scales() -> None:
    """4 × 3 × 2 × 2 × 2 × 2 settings, of which 4 × 2 × 1 × 2 × 2 × 2 have tiles of 128 or 256 by 128."""
    assert len(candidates(None)) == 192
    assert len(candidates([128, 128])) == 64
    assert {each["BLOCK_SIZE_K"] for each in candidates([128, 128])} == {128}


def test_the_fastest_settings_are_kept_and_the_defaults_where_none_is_faster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune_experts, "TOKENS", (1, 64))
    default = {"BLOCK_SIZE_M": 8}

    class Timed:
        def microseconds(self, tokens: int, settings: dict[str, int]) -> float | None:
            if settings == default:
                return 50.0
            if settings["num_stages"] == 4:
                return None
            return 140.0 - settings["BLOCK_SIZE_M"] * (tokens == 64)

    found = tune(Timed(), lambda _: default, None)
    assert found[1] == default
    assert (found[64]["BLOCK_SIZE_M"], found[64]["num_stages"]) == (128, 3)
    assert capsys.readouterr().out.splitlines() == [
        "1 tokens: 50 µs by default, 50 µs tuned",
        "64 tokens: 50 µs by default, 12 µs tuned",
    ]
