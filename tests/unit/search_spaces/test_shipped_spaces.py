"""The contract for every shipped space, and the purpose of each."""

from dataclasses import replace

import pytest

from search_spaces import Context, ParameterValue, Space, hardware_named, load_space, space_names
from tests.contracts.space_contract import SpaceContract, generous


class TestShippedSpaces(SpaceContract):
    @pytest.fixture(scope="class", params=space_names())
    @classmethod
    def space(cls, request: pytest.FixtureRequest) -> Space:
        return load_space(request.param)


def test_the_names_of_the_shipped_spaces() -> None:
    assert space_names() == ["cpu", "faults-cpu", "kv-offload", "speculation-cpu", "sweep-cpu", "vllm", "vllm-extra"]


def test_the_sweep_has_six_configurations() -> None:
    resolved = load_space("sweep-cpu").resolve(generous("cpu", "0.32.0+cpu"))
    assert resolved.cardinality() == 6
    assert resolved.render({"max_num_seqs": 16, "enforce_eager": True}).argv == (
        "--max-num-seqs",
        "16",
        "--enforce-eager",
    )
    assert resolved.render({"max_num_seqs": 8, "enforce_eager": False}).argv == ("--max-num-seqs", "8")


def test_the_speculation_space_has_twelve_configurations() -> None:
    resolved = load_space("speculation-cpu").resolve(generous("cpu", "0.32.0+cpu"))
    assert resolved.cardinality() == 3 * (1 + 3)
    assert resolved.render({"speculative": "off", "max_num_seqs": 8}).argv == ("--max-num-seqs", "8")
    assert resolved.render({"speculative": "suffix", "suffix_tokens": 16}).argv == (
        "--speculative-config",
        '{"method":"suffix","num_speculative_tokens":16}',
    )


def test_without_arctic_inference_suffix_is_not_offered() -> None:
    context = Context(hardware_named("cpu"), packages=frozenset())
    resolved = load_space("speculation-cpu").resolve(context)
    (dropped,) = [d for d in resolved.dropped if d.value == "suffix"]
    assert "arctic-inference==0.1.1" in dropped.reason
    assert resolved.cardinality() == 3


def test_a_parameter_whose_condition_cannot_hold_is_not_offered() -> None:
    resolved = load_space("cpu").resolve(Context(hardware_named("cpu"), packages=frozenset()))
    assert "suffix_tokens" not in {parameter.name for parameter in resolved.parameters}
    (dropped,) = [d for d in resolved.dropped if d.parameter == "suffix_tokens"]
    assert dropped.reason == 'it counts only when speculative == "suffix", and no offered value makes that true'
    assert "ngram_tokens" in {parameter.name for parameter in resolved.parameters}


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_the_cpu_space_rules_out_what_vllms_check_refuses(method: str) -> None:
    resolved = load_space("cpu").resolve(generous("cpu", "0.32.0+cpu"))
    config: dict[str, ParameterValue] = {"async_scheduling": True, "speculative": method, f"{method}_tokens": 4}
    assert [violation.rule for violation in resolved.violations(config)] == ["async-with-speculation"]
    assert resolved.violations({**config, "async_scheduling": None}) == []


def test_the_cpu_space_uses_the_length_of_the_server_arguments() -> None:
    context = Context(hardware_named("cpu"), base_argv=("--load-format", "dummy", "--max-model-len", "1024"))
    resolved = load_space("cpu").resolve(context)
    (dropped,) = [d for d in resolved.dropped if d.parameter == "max_model_len"]
    assert dropped.reason == "the study's own server arguments set it"
    refused = resolved.violations({"max_num_batched_tokens": 512, "chunked_prefill": False})
    assert [violation.rule for violation in refused] == ["unchunked-tokens-below-length"]
    assert "(512) is below max_model_len (1024)" in refused[0].message
    assert resolved.violations({"max_num_batched_tokens": 1024, "chunked_prefill": False}) == []


def test_the_faults_space_has_no_rule_against_its_faults() -> None:
    resolved = load_space("faults-cpu").resolve(generous("cpu", "0.32.0+cpu"))
    assert set(resolved.named) == {"rejected", "dies-at-start"}
    assert [resolved.violations(named.config) for named in resolved.named.values()] == [[], []]
    assert resolved.cardinality() == 3 * 4 * 2 * (1 + 2)
    assert resolved.render(resolved.named["rejected"].config).argv == (
        "--async-scheduling",
        "--speculative-config",
        '{"method":"ngram","num_speculative_tokens":4}',
    )
    assert resolved.render(resolved.named["dies-at-start"].config).argv == ("--block-size", "16")


@pytest.mark.parametrize("name", ["vllm", "vllm-extra", "kv-offload", "cpu", "speculation-cpu"])
@pytest.mark.parametrize("hardware", ["t4", "h200", "cpu"])
def test_without_engine_facts_nothing_more_is_excluded(name: str, hardware: str) -> None:
    """`tuner optimize` checks names before it reads vLLM's facts, so the early check must not be stricter."""
    for version in ("0.15.1", "0.25.1", "0.32.0+cpu"):
        context = generous(hardware, version)
        with_facts = load_space(name).resolve(context)
        without_facts = load_space(name).resolve(replace(context, engine_version=None, flags=None, packages=None))
        offered = {parameter.name: set(parameter.values) for parameter in without_facts.parameters}
        assert {parameter.name for parameter in with_facts.parameters} <= set(offered)
        assert all(set(parameter.values) <= offered[parameter.name] for parameter in with_facts.parameters)
        assert set(with_facts.named) <= set(without_facts.named)
