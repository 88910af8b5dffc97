"""A study in another database is the same study."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from records.trials import FailureKind, ServerFacts, TrialKind
from storage import open_store
from storage.errors import StorageError
from storage.store import Store
from tests import store_samples as samples
from tuner.use_cases.files import add_study, study_lines


def fill(store: Store) -> None:
    """A study with a retried trial, a failed, an infeasible and a pending one, and a round."""
    store.create_study(replace(samples.study(), conclusion={"winner": 0, "would_help": [], "keeps": None}))
    for number, round_, kind in ((0, 0, TrialKind.BASELINE), (0, 1, TrialKind.CONFIRM), (1, 0, TrialKind.SEARCH)):
        store.add_trial(replace(samples.pending(number, round_, kind=kind), label="named" if number else None))
        store.begin_attempt("s", number, round_)
    store.record_failed_attempt("s", 0, 0, 1, samples.failed(FailureKind.OUT_OF_MEMORY_STARTUP))
    store.begin_attempt("s", 0)
    outcome = samples.success(server=ServerFacts(kv_cache_tokens=4096, kv_usage_max=0.5))
    store.finish_trial("s", 0, 0, outcome, samples.verdict())
    store.finish_trial("s", 0, 1, samples.success(samples.repeat(0, None)), samples.verdict(None, 2.0))
    store.finish_trial("s", 1, 0, samples.failed(message="no\nmemory"), None)
    store.add_trial(samples.pending(3))
    store.begin_attempt("s", 3)


def test_every_record_is_the_same(tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "a.db"))) as one, closing(open_store(str(tmp_path / "b.db"))) as other:
        fill(one)
        lines = [json.loads(line) for line in study_lines(one, "s")]
        assert [[*line] for line in lines] == [["study"], ["attempt"], ["trial"], ["trial"], ["trial"], ["trial"]]
        add_study(other, lines)
        assert other.studies() == one.studies()
        assert other.trials("s") == one.trials("s")
        assert other.failed_attempts("s") == one.failed_attempts("s")
        assert [*study_lines(other, "s")] == [*study_lines(one, "s")]
        config = other.trials("s")[0].config
        assert [type(value) for value in config.values()] == [int, float, bool, str, type(None)]
        with pytest.raises(StorageError, match="already a study"):
            add_study(other, lines)
