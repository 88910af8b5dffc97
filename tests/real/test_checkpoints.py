"""Quantized checkpoints and drafts on a real vLLM: each kind is a trial that is measured.

The model's weights are made up, and its answers repeat one token: no speed or acceptance follows for a real model.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from records.trials import TrialRecord
from storage import normalise_url, open_store
from tests.real.studies import EAGER, SERVER, environment, study

pytestmark = pytest.mark.release

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
INT4 = {"bits": 4, "group_size": 128}
W8A8 = {
    "targets": ["Linear"],
    "weights": {**INT8, "dynamic": False, "strategy": "channel"},
    "input_activations": {**INT8, "dynamic": True, "strategy": "token"},
}
METHODS: dict[str, dict[str, Any]] = {
    "compressed-tensors": {"format": "int-quantized", "config_groups": {"all": W8A8}, "ignore": ["lm_head"]},
    "gptq": {**INT4, "desc_act": False, "sym": True},
    "awq": {**INT4, "zero_point": True, "version": "gemm"},
    "auto-round": {**INT4, "sym": True, "data_type": "int", "packing_format": "auto_round:auto_gptq"},
}
"""`quantization_config` of a checkpoint's config.json, without the method."""
SPACE = {
    "parameters": {
        "quantization": {
            "description": "The checkpoint.",
            "type": "categorical",
            "flag": "--quantization",
            "changes_answers": True,
            "choices": [None, *({"value": name, "checkpoint": name} for name in METHODS)],
        },
        "speculative": {
            "description": "Where drafts come from.",
            "type": "categorical",
            "json": {"flag": "--speculative-config", "key": "method"},
            "choices": [
                {"value": "off", "args": []},
                *("ngram", "suffix"),
                {
                    "value": "draft",
                    "draft_model": True,
                    "json": {"method": "draft_model", "model": "{draft_model}", "num_speculative_tokens": 2},
                },
            ],
        },
        "draft_tokens": {
            "description": "Tokens of a draft.",
            "type": "int",
            "low": 2,
            "high": 8,
            "when": 'speculative in ["ngram", "suffix"]',
            "json": {"flag": "--speculative-config", "key": "num_speculative_tokens"},
        },
    }
}
CONFIGURATIONS: list[dict[str, Any]] = [
    *({"quantization": name} for name in METHODS),
    *({"speculative": name, "draft_tokens": 3} for name in ("ngram", "suffix")),
    {"speculative": "draft"},
]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, home: Path, vllm: Path, tiny_model: Path) -> list[TrialRecord]:
    """The trials of a study over made text, the defaults first; the checkpoints are given by relative paths."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, settings in METHODS.items():
        shutil.copytree(tiny_model, folder / name)
        config = json.loads((folder / name / "config.json").read_text())
        config["quantization_config"] = {"quant_method": name, **settings}
        (folder / name / "config.json").write_text(json.dumps(config))
    shutil.copytree(tiny_model, folder / "draft")
    (folder / "space.yaml").write_text(json.dumps(SPACE))
    models = [word for name in METHODS for word in ("--checkpoint", f"{name}={name}")]
    given = [word for each in CONFIGURATIONS for word in ("--enqueue", json.dumps(each))]
    load = ("--preset", "conversations", "--users", "8", "--prompts", "24", "--slo", "success_rate>=1")
    study(
        *(folder, environment(home), vllm, tiny_model),
        *(*models, "--draft-model", "./draft", "--space", "space.yaml", *given, *load, "--allow-bunched-tokens"),
        *("--study", "made", "--trials", str(1 + len(CONFIGURATIONS)), "--confirm-rounds", "0", "--min-gain", "0"),
        *("--baseline-repeats", "1", "--env", "VLLM_CPU_KVCACHE_SPACE=1", *SERVER, "--max-model-len", "2048", EAGER),
    )
    store = open_store(normalise_url(str(folder / "tuner_study" / "tuner.db")))
    found = store.trials("made")
    store.close()
    return found


def test_every_trial_is_measured_and_every_request_counts(trials: list[TrialRecord]) -> None:
    assert [trial.config for trial in trials[1:]] == CONFIGURATIONS
    for trial in trials:
        assert trial.outcome is not None
        assert trial.outcome.succeeded, trial.outcome.failure
        assert [(repeat.offered, repeat.failed) for repeat in trial.outcome.repeats] == [(24, 0)]


def test_each_checkpoint_is_served_and_each_kind_of_draft_is_accepted(trials: list[TrialRecord]) -> None:
    outcomes = [trial.outcome for trial in trials if trial.outcome is not None]
    assert [Path(each.argv[2]).name for each in outcomes[1 : 1 + len(METHODS)]] == list(METHODS)
    rates = [each.server.spec_acceptance_rate for each in outcomes if each.server is not None]
    assert rates[: 1 + len(METHODS)] == [None] * (1 + len(METHODS))
    assert all(rate is not None and rate > 0 for rate in rates[1 + len(METHODS) :])
    assert len(rates) == len(trials)
