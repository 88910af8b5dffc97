"""How many GPUs hold a model that one does not."""

import pytest

from search_spaces import hardware_named, known_models
from tuner.engines.simulator.parameters import parameters_of
from tuner.engines.simulator.prediction import Platform
from tuner.use_cases.simulate import split_advice


def advice(model: str, card: str, *words: str) -> str:
    site = Platform(hardware_named(card), parameters_of(card), (0, 25, 1), frozenset())
    return split_advice(site, words, {}, known_models()[model])


@pytest.mark.parametrize(
    ("model", "card", "words", "end"),
    [
        # 131.4 GiB of weights: 65.7 on each of two GPUs of 79.1; 40 GiB of cache for 131,072 tokens: 10 on each of four
        ("meta-llama/Llama-3.3-70B-Instruct", "h100", (), " It fits on 4 GPUs: --tensor-parallel-size 4"),
        ("meta-llama/Llama-3.3-70B-Instruct", "h100", ("--max-model-len", "8192"), " It fits on 2 GPUs: --tensor-"),
        # 626.9 GiB: 78.4 on each of eight
        ("deepseek-ai/DeepSeek-V3", "h100", (), " It does not fit on 8 such GPUs either"),
        ("deepseek-ai/DeepSeek-V3", "h200", (), " It fits on 8 GPUs"),
        ("deepseek-ai/DeepSeek-V3", "h200", ("--tensor-parallel-size", "2"), ""),
    ],
)
def test_the_fewest_gpus_that_hold_a_model_are_named(model: str, card: str, words: tuple[str, ...], end: str) -> None:
    assert advice(model, card, *words).startswith(end)
