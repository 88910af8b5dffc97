"""The example of docs/search-space.md is a valid space and behaves as the page describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from search_spaces import Space, load_space
from search_spaces.expressions import FACT_NAMES
from search_spaces.schema import ChoiceSpec, ParameterSpec
from tests.contracts.space_contract import SpaceContract, generous

PAGE = (Path(__file__).parents[3] / "docs" / "search-space.md").read_text(encoding="utf-8")


class TestExample(SpaceContract):
    @pytest.fixture
    def space(self, tmp_path: Path) -> Space:
        match = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
        assert match is not None
        path = tmp_path / "example.yaml"
        path.write_text(match[1], encoding="utf-8")
        return load_space(path)

    def test_a_t4_drops_the_fp8_kv_cache(self, space: Space) -> None:
        resolved = space.resolve(generous("t4", "0.25.1"))
        assert [(d.parameter, d.value, d.reason) for d in resolved.dropped] == [
            ("kv_cache_dtype", "fp8", "an FP8 KV cache needs compute capability 8.9, Tesla T4 has 7.5"),
            ("kv_cache_dtype", None, "only the engine's default is left"),
        ]

    def test_the_named_configuration_renders_as_the_page_shows(self, space: Space) -> None:
        resolved = space.resolve(generous("t4", "0.25.1"))
        text = " ".join(resolved.render(resolved.named["three-drafts"].config).argv)
        assert text == '--max-num-seqs 32 --speculative-config {"method":"ngram","num_speculative_tokens":3}'
        assert f"```text\n{text}\n```" in PAGE

    def test_the_rule_uses_the_engines_default(self, space: Space) -> None:
        (violation,) = space.resolve(generous("h200", "0.25.1")).violations({"speculative": "ngram"})
        assert violation.message == "drafts do not pay with 256 requests in a step; lower max_num_seqs"


def test_the_page_names_every_key_and_fact() -> None:
    keys = [field.alias or name for model in (ParameterSpec, ChoiceSpec) for name, field in model.model_fields.items()]
    assert [key for key in keys if not re.search(rf"`[^`]*\b{key}\b[^`]*`", PAGE)] == []
    assert [fact for fact in FACT_NAMES if f"`{fact}`" not in PAGE] == []
