"""The contract of every search space; a test class adds the fixture `space` and nothing else."""

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks.search.problems.trials import NumberRange, ValueTrial
from search_spaces import (
    Context,
    ModelShape,
    ParameterValue,
    Rendered,
    ResolvedSpace,
    Space,
    hardware_named,
    load_space,
    space_names,
)
from search_spaces.parameter import same_value
from tests.some import some
from tuner.engines.server.flags import ServeFlags, load_flags

COMMON_FLAGS = frozenset(
    {
        "--api-server-count",
        "--async-scheduling",
        "--attention-backend",
        "--block-size",
        "--compilation-config",
        "--cudagraph-capture-sizes",
        "--dtype",
        "--enable-chunked-prefill",
        "--enable-prefix-caching",
        "--enforce-eager",
        "--gpu-memory-utilization",
        "--kv-cache-dtype",
        "--max-cudagraph-capture-size",
        "--max-model-len",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--no-async-scheduling",
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--optimization-level",
        "--quantization",
        "--scheduling-policy",
        "--speculative-config",
        "--stream-interval",
    }
)
"""Flags of `vllm serve` that spaces use and that 0.15.1, 0.25.1 and 0.32.0 have."""


def recorded_flags(version: str) -> ServeFlags:
    flags = load_flags(Path(__file__).parents[1] / "data" / "vllm_flags" / f"{version}.json", "vLLM")
    assert flags is not None
    return flags


FLAGS = {version: recorded_flags(version.removesuffix("+cpu")).names for version in ("0.15.1", "0.25.1", "0.32.0+cpu")}

QWEN = ModelShape(24, 896, 4864, 14, 2, 64, 151936, 32768, True, "bfloat16", None)
"""The shape of Qwen2.5-0.5B."""


class RandomTrial(ValueTrial):
    """A trial that draws from a seeded generator and records the domain of each parameter."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.calls: dict[str, object] = {}

    def choose(self, name: str, choices: Sequence[ParameterValue]) -> ParameterValue:
        self.calls[name] = tuple(choices)
        return self.random.choice(list(choices))

    def choose_number(self, name: str, numbers: NumberRange) -> float:
        self.calls[name] = numbers
        if numbers.step is None:
            return self.random.uniform(numbers.low, numbers.high)
        value = self.random.choice(numbers.listed())
        assert isinstance(value, int | float)
        return value


def generous(hardware: str, version: str) -> Context:
    return Context(
        hardware=hardware_named(hardware),
        engine_version=version,
        flags=FLAGS[version],
        model=QWEN,
        packages=frozenset({"arctic_inference", "flashinfer", "bitsandbytes"}),
        concurrency=50,
        input_len=512,
        output_len=512,
        draft_model="a/draft",
        checkpoints={method: f"quantized/{method}" for method in ("awq", "gptq", "compressed-tensors")},
    )


def engine_context(engine: str, card: str, version: str, *packages: str, **facts: Any) -> Context:
    """Return the context of a study of another engine than vLLM; the facts are fields of it."""
    context = Context(
        hardware=hardware_named(card),
        engine_version=version,
        model=QWEN,
        packages=frozenset(packages),
        concurrency=50,
        input_len=512,
        output_len=512,
        engine=engine,
        cores=16,
    )
    return replace(context, **facts)


def values(space: ResolvedSpace, name: str) -> tuple[ParameterValue, ...]:
    """Return the values that a parameter offers; none if it is not offered."""
    return next((each.values for each in space.parameters if each.name == name), ())


def reason(space: ResolvedSpace, name: str, value: ParameterValue = None) -> str:
    """Return why a value, or without one the whole parameter, is not offered."""
    (dropped,) = [d for d in space.dropped if d.parameter == name and d.value == value]
    return dropped.reason


CONTEXTS = [("cpu", "0.32.0+cpu"), ("t4", "0.15.1"), ("t4", "0.25.1"), ("l4", "0.25.1"), ("h200", "0.25.1")]


class SpaceContract:
    """Tests of one space; a subclass defines the fixture `space`."""

    @pytest.fixture(scope="class")
    @classmethod
    def space(cls) -> Space:
        raise NotImplementedError

    @pytest.fixture(scope="class", params=CONTEXTS, ids=lambda pair: "-".join(pair))
    @classmethod
    def context(cls, request: pytest.FixtureRequest) -> Context:
        return generous(*request.param)

    @pytest.fixture(scope="class")
    @classmethod
    def resolved(cls, space: Space, context: Context) -> ResolvedSpace:
        return space.resolve(context)

    def test_the_empty_configuration_renders_to_nothing_and_breaks_no_rule(self, resolved: ResolvedSpace) -> None:
        rendered = resolved.render({})
        assert (rendered.argv, rendered.environment, rendered.model) == ((), {}, None)
        assert resolved.violations({}) == []

    def test_a_suggested_configuration_lies_in_the_space_and_renders_to_flags_of_the_engine(
        self, context: Context, resolved: ResolvedSpace
    ) -> None:
        for seed in range(30):
            config = resolved.suggest(RandomTrial(seed))
            assert resolved.complete(config) == config
            argv = resolved.render(config).argv
            flags = [word for word in argv if word.startswith("--")]
            assert set(flags) <= some(context.flags)
            assert len(flags) == len(set(flags))
            for flag, value in itertools.pairwise(argv):
                if flag in ("--speculative-config", "--compilation-config", "--attention-config"):
                    content = json.loads(value)
                    assert content
                    assert list(content) == sorted(content)

    def test_a_suggestion_is_reproducible(self, space: Space, context: Context) -> None:
        first, second = RandomTrial(7), RandomTrial(7)
        configs = [space.resolve(context).suggest(trial) for trial in (first, second)]
        assert list(configs[0].items()) == list(configs[1].items())
        assert first.calls == second.calls

    def test_categorical_values_are_json_scalars(self, resolved: ResolvedSpace) -> None:
        for parameter in resolved.parameters:
            assert all(value is None or isinstance(value, bool | int | float | str) for value in parameter.values)

    def test_a_fixed_suggestion_suggests_nothing_else(self, resolved: ResolvedSpace) -> None:
        config = resolved.suggest(RandomTrial(3))
        trial = RandomTrial(3)
        resolved.suggest_fixed(trial, config)
        assert list(trial.calls) == list(config)
        empty = RandomTrial(3)
        resolved.suggest_fixed(empty, {})
        assert empty.calls == {}

    def test_the_engine_defaults_lie_in_the_space(self, resolved: ResolvedSpace) -> None:
        defaults = resolved.engine_defaults()
        assert resolved.complete(defaults) == defaults

    def test_named_configurations_lie_in_the_space(
        self, space: Space, context: Context, resolved: ResolvedSpace
    ) -> None:
        for name, named in resolved.named.items():
            own = space.resolve(context, wanted=dict.fromkeys(named.config))
            assert own.contains(named.config), name
            assert own.violations(named.config) == [], name
            assert own.render(named.config) != Rendered(), name
            assert named.source, name
            beside = own.defaults_beside(named.config)
            assert beside.keys().isdisjoint(named.config), name
            assert own.contains({**beside, **named.config}), name

    def test_everything_dropped_has_a_reason(self, resolved: ResolvedSpace) -> None:
        for dropped in resolved.dropped:
            assert dropped.reason
            assert "{" not in dropped.reason
            assert "unknown" not in dropped.reason

    def test_keep_answers_drops_what_may_change_them(self, space: Space, context: Context) -> None:
        resolved = space.resolve(context, keep_answers=True)
        assert not any(parameter.spec.changes_answers for parameter in resolved.parameters)

    def test_the_dictionary_is_plain_json(self, resolved: ResolvedSpace) -> None:
        content = resolved.to_dict()
        assert json.loads(json.dumps(content)) == content
        assert [*content["parameters"]] == [parameter.name for parameter in resolved.parameters]

    def test_unknown_names_and_values_are_refused(self, resolved: ResolvedSpace) -> None:
        assert not resolved.contains({"no_such_parameter": 1})
        for parameter in resolved.parameters:
            assert not resolved.contains({parameter.name: "no such value"})

    def test_equal_values_of_different_types_differ(self) -> None:
        assert not same_value(1, True)
        assert not same_value(1, 1.0)
        assert same_value(None, None)


class EngineSpaceContract(SpaceContract):
    """Tests of the one space of an engine; a subclass sets the attributes.

    Attributes:
        name: of the space and of its engine.
        made: the context of the tests.
        cards: on which the space is resolved with every flag that it declares.
        excluded: configurations, each with the one rule that it breaks.
        allowed: configurations that break none.
    """

    name: ClassVar[str]
    made: ClassVar[Context]
    cards: ClassVar[tuple[str, str]]
    excluded: ClassVar[Sequence[tuple[Mapping[str, ParameterValue], str]]]
    allowed: ClassVar[Sequence[Mapping[str, ParameterValue]]]

    @pytest.fixture(scope="class")
    @classmethod
    def space(cls) -> Space:
        return load_space(cls.name)

    @pytest.fixture(scope="class", params=(0, 1))
    @classmethod
    def context(cls, request: pytest.FixtureRequest, space: Space) -> Context:
        words = str([*space.specs.values()]).replace("'", " ").split()
        flags = frozenset(word for word in words if word.startswith("--"))
        return replace(cls.made, hardware=hardware_named(cls.cards[request.param]), cores=None, flags=flags)

    def test_the_space_names_its_engine(self, space: Space) -> None:
        assert space.engine == self.name
        assert space_names(self.name) == [self.name]

    def test_rules_exclude_and_allow(self, space: Space) -> None:
        resolved = space.resolve(self.made)
        found = [(config, *(each.rule for each in resolved.violations(config))) for config, _ in self.excluded]
        assert found == list(self.excluded)
        assert [config for config in self.allowed if resolved.violations(config)] == []
