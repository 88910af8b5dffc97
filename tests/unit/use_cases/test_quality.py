"""The candidate and the reference of a comparison of answers."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import Failure, FailureKind, Phase, Provenance
from storage import open_store
from storage.store import Store
from tests import store_samples
from tests.fakes import install_fake_vllm
from tests.model_configs import write_folder
from tests.unit.test_gpu import FakeNvml
from tuner import gpu
from tuner.engines.base import EngineSettings
from tuner.errors import SettingError
from tuner.quality.examiner import ExamFailed, Variant
from tuner.settings.study import StudySettings
from tuner.specs import ModelRef
from tuner.use_cases import answers as quality
from tuner.use_cases.answers import (
    check_of_winner,
    check_quality,
    check_reference,
    keep_in_study,
    studied,
)

LOG = Path("tuner_study/quality/a3/server.log")


class Unserved:
    """An examiner whose servers do not start."""

    def __init__(self, failed: ExamFailed) -> None:
        self._failed = failed

    def answers(self, variant: Variant) -> None:
        """Fail."""
        raise self._failed


@pytest.mark.parametrize(
    ("kind", "message", "remedy"),
    [
        (FailureKind.OUT_OF_MEMORY_STARTUP, "CUDA out of memory", "give a model that fits by reference, or leave"),
        (FailureKind.ENGINE_CRASH, "No module named 'flashinfer'", "its log is tuner_study/quality/a3/server.log"),
    ],
)
def test_the_remedy_depends_on_why_the_reference_did_not_start(kind: FailureKind, message: str, remedy: str) -> None:
    failed = ExamFailed(message, Failure(kind, Phase.LAUNCH, message), LOG)
    variant = Variant(ModelRef("m", "m", "m"), (), {})
    with pytest.raises(SettingError) as raised:
        check_reference(Unserved(failed), variant, None)  # type: ignore[arg-type]
    assert f"it cannot be served: {message}; {remedy}" in str(raised.value)


class Stop(Exception):
    """Ends a comparison before its first server."""


def test_servers_of_two_gpus_get_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pynvml", lambda: FakeNvml((("NVIDIA H200", (9, 0), 140.0),) * 2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found: list[EngineSettings] = []

    def factory(settings: EngineSettings) -> None:
        found.append(settings)
        raise Stop

    monkeypatch.setattr(quality, "EngineFactory", factory)
    vllm, model = install_fake_vllm(tmp_path / "bin"), tmp_path / "model"
    write_folder(model, {})
    storage = str(tmp_path / "tuner.db")
    asked = StudySettings(model=str(model), vllm=str(vllm), server_arguments=("-tp", "2"), storage=storage)
    with pytest.raises(Stop):
        check_quality(asked, None, "quality>=0.99", None, threading.Event())
    assert [each.gpus for each in found] == [2]
    (model / "model.safetensors").unlink()
    with pytest.raises(SettingError, match="the folder has no weights"):
        check_quality(asked, None, "quality>=0.99", None, threading.Event())


WORDS = (
    *("/opt/vllm", "serve", "checkpoint", "--host", "127.0.0.1", "--port", "1", "--served-model-name", "m"),
    *("--seed", "3", "--max-num-seqs", "491", "--max-num-batched-tokens", "4710", "--quantization", "fp8"),
)
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": "/cache"}
SPACE = {"parameters": {"quantization": {"changes_answers": True}}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A database in the current folder, beside the model `m`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    with closing(open_store(f"sqlite:///{tmp_path / 'a.db'}")) as opened:
        yield opened


def add(store: Store, words: tuple[str, ...] = WORDS, **more: Any) -> None:
    """Add a study whose winner, trial 4, ran this server."""
    premise = {"model": {"name": "./m", "tokenizer": "t"}, "space": SPACE}
    store.create_study(replace(store_samples.study(), premise=premise, **more))
    store.update_study("s", conclusion={"winner": 4})
    provenance = more.get("provenance", Provenance.MEASURED)
    outcome = replace(store_samples.success(provenance=provenance), argv=words, environment=ENVIRONMENT)
    trial = replace(store_samples.pending(4), config={"quantization": "fp8"})
    store.add_trial(trial)
    store.finish_trial("s", 4, 0, outcome, None)


def test_a_trial_is_asked_without_its_port_and_its_batches(store: Store) -> None:
    add(store)
    asked = studied(store, "s", None, None)
    assert (asked.candidate.model.name, asked.candidate.model.tokenizer) == ("checkpoint", "t")
    assert asked.candidate.argv == ("--seed", "3", "--quantization", "fp8")
    assert asked.candidate.environment == {"HF_HUB_OFFLINE": "1"}
    assert (Path(asked.reference.model.name).name, asked.reference.argv) == ("m", ("--seed", "3"))


def test_what_was_found_is_kept_with_the_study(store: Store) -> None:
    add(store)
    assert check_of_winner(store, "s") == "tuner quality --study s"
    keep_in_study(store, studied(store, "s", 4, None), {"agreement": 1.0, "kl": 0.0, "broken": False})
    assert check_of_winner(store, "s") is None


def test_a_configuration_that_changes_no_answer_needs_no_check(store: Store) -> None:
    add(store, ("/opt/vllm", "serve", os.path.abspath("m"), "--seed", "3"))
    with pytest.raises(SettingError, match="has no flag that changes answers"):
        studied(store, "s", 4, None)


def test_a_simulated_study_has_no_answers(store: Store) -> None:
    add(store, provenance=Provenance.SIMULATED)
    assert check_of_winner(store, "s") is None
    with pytest.raises(SettingError, match="it is simulated"):
        studied(store, "s", 4, None)


@pytest.mark.parametrize("number", [3, 400])
def test_a_trial_without_a_server_is_refused(store: Store, number: int) -> None:
    add(store)
    store.add_trial(store_samples.pending(3))
    with pytest.raises(SettingError, match=f"trial={number}: study 's' has no such trial with a server"):
        studied(store, "s", number, None)
