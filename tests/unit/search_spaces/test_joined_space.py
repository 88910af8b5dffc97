"""A space of several engines: its contract, and what the engine opens and closes."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from search_spaces import (
    Context,
    JoinedSpace,
    ParameterValue,
    ResolvedSpace,
    Space,
    SpaceError,
    hardware_named,
    join,
    load_space,
    parse_space,
)
from tests.contracts.space_contract import COMMON_FLAGS, QWEN, RandomTrial, SpaceContract

CPU = hardware_named("cpu")
VLLM = Context(hardware=CPU, engine_version="0.32.0+cpu", model=QWEN, concurrency=16, input_len=128, output_len=64)
LLAMA = replace(VLLM, engine_version="2026.10.11549", packages=frozenset(), engine="llama.cpp", cores=4)


SPACES = {"vllm": load_space("cpu"), "llama.cpp": load_space("llama.cpp")}


class Declared(Space):
    """Two declared spaces with the methods of one, as the contract calls them."""

    def __init__(self) -> None:
        super().__init__("both", "Two engines", {}, (), {})

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(f"{engine}.{name}" for engine, space in SPACES.items() for name in space.parameter_names)

    def resolve(
        self,
        context: Context,
        keep_answers: bool = False,
        only: Collection[str] | None = None,
        *,
        keep_stream: bool = False,
        wanted: Mapping[str, Collection[ParameterValue] | None] = MappingProxyType({}),
        begun: Mapping[str, Collection[ParameterValue]] = MappingProxyType({}),
    ) -> JoinedSpace:
        parts = {}
        for engine, declared in SPACES.items():
            own = {name.removeprefix(f"{engine}."): v for name, v in wanted.items() if name.startswith(f"{engine}.")}
            parts[engine] = declared.resolve(
                replace(VLLM if engine == "vllm" else LLAMA, flags=context.flags), keep_answers, wanted=own
            )
        return join(parts)


class TestContract(SpaceContract):
    @pytest.fixture(scope="class")
    @classmethod
    def space(cls) -> Space:
        return Declared()

    @pytest.fixture(scope="class")
    @classmethod
    def context(cls) -> Context:
        declared = str([*load_space("llama.cpp").specs.values()]).replace("'", " ").split()
        flags = {word for word in declared if word.startswith("--")}
        return replace(VLLM, flags=COMMON_FLAGS | flags)

    def test_named_configurations_are_those_of_both_engines(self, resolved: ResolvedSpace) -> None:
        assert {each.config["engine"] for each in resolved.named.values()} == {"vllm", "llama.cpp"}


VLLM_SPACE = """
parameters:
  seqs: {description: A., type: categorical, choices: [null, 8, 16], flag: --max-num-seqs}
  chunked: {description: B., type: bool, flag: --chunk, no_flag: --no-chunk, engine_default: true}
rules:
  - {name: small, forbid: "seqs == 16 and chunked == False", why: "no {seqs}"}
"""
LLAMA_SPACE = """
engine: llama.cpp
parameters:
  threads: {description: C., type: int, low: 1, high: 4, flag: --threads}
  seqs: {description: D., type: categorical, choices: [null, 2], flag: --parallel}
  unified: {description: E., type: bool, flag: --kv-unified, no_flag: --no-kv-unified, when: "seqs == 2"}
rules:
  - {name: many, forbid: "threads == 4 and seqs == 2", why: "{threads} threads"}
named:
  two: {config: {threads: 2}, note: Two., source: a test}
"""


@pytest.fixture
def joined() -> JoinedSpace:
    vllm, llama = parse_space(VLLM_SPACE), parse_space(LLAMA_SPACE)
    return join({"vllm": vllm.resolve(Context(CPU)), "llama.cpp": llama.resolve(Context(CPU, engine="llama.cpp"))})


def test_the_engine_comes_first_and_opens_its_own_parameters(joined: JoinedSpace) -> None:
    assert [each.name for each in joined.parameters] == [
        "engine",
        "vllm.seqs",
        "vllm.chunked",
        "llama.cpp.threads",
        "llama.cpp.seqs",
        "llama.cpp.unified",
    ]
    suggested = [joined.suggest(RandomTrial(seed)) for seed in range(40)]
    by_engine = {engine: [each for each in suggested if each["engine"] == engine] for engine in joined.parts}
    assert all(by_engine.values())
    for engine, configs in by_engine.items():
        assert {name for each in configs for name in each if name != "engine"} <= {
            parameter.name for parameter in joined.parameters if parameter.name.startswith(f"{engine}.")
        }
    for each in by_engine["llama.cpp"]:
        assert ("llama.cpp.unified" in each) == (each["llama.cpp.seqs"] == 2)


def test_a_configuration_renders_with_the_flags_and_the_name_of_its_engine(joined: JoinedSpace) -> None:
    rendered = joined.render({"engine": "llama.cpp", "llama.cpp.threads": 2, "llama.cpp.seqs": 2})
    assert (rendered.engine, rendered.argv) == ("llama.cpp", ("--threads", "2", "--parallel", "2"))
    rendered = joined.render({"engine": "vllm", "vllm.seqs": 8})
    assert (rendered.engine, rendered.argv) == ("vllm", ("--max-num-seqs", "8"))


def test_the_empty_configuration_is_the_default_engine(joined: JoinedSpace) -> None:
    assert joined.render({}).engine == "vllm"
    assert joined.render({}) == joined.render({"engine": "vllm"})
    assert joined.same_server({}, {"engine": "vllm"})
    assert not joined.same_server({}, {"engine": "llama.cpp"})


def test_rules_are_those_of_the_engine(joined: JoinedSpace) -> None:
    broken = joined.violations({"engine": "llama.cpp", "llama.cpp.threads": 4, "llama.cpp.seqs": 2})
    assert [each.message for each in broken] == ["4 threads"]
    assert joined.violations({"engine": "vllm", "vllm.seqs": 8}) == []
    broken = joined.violations({"engine": "vllm", "vllm.seqs": 16, "vllm.chunked": False})
    assert [each.message for each in broken] == ["no 16"]


def test_the_engine_is_no_changed_flag(joined: JoinedSpace) -> None:
    assert joined.changed({"engine": "llama.cpp"}) == []
    assert joined.changed({"engine": "llama.cpp", "llama.cpp.threads": 2}) == ["llama.cpp.threads"]
    assert joined.changed({"engine": "vllm", "vllm.seqs": None, "vllm.chunked": True}) == []


def test_only_the_default_engine_without_flags_is_the_reference(joined: JoinedSpace) -> None:
    assert joined.is_reference({})
    assert joined.is_reference({"engine": "vllm", "vllm.chunked": True})
    assert not joined.is_reference({"engine": "vllm", "vllm.chunked": False})
    assert not joined.is_reference({"engine": "llama.cpp"})


def test_a_flag_is_reset_within_its_engine(joined: JoinedSpace) -> None:
    config: dict[str, ParameterValue] = {
        "engine": "llama.cpp",
        "llama.cpp.threads": 2,
        "llama.cpp.seqs": 2,
        "llama.cpp.unified": True,
    }
    assert joined.without(config, "llama.cpp.seqs") == {"engine": "llama.cpp", "llama.cpp.threads": 2}


def test_each_engine_has_its_own_defaults(joined: JoinedSpace) -> None:
    assert joined.engine_defaults() == {"engine": "vllm", "vllm.seqs": None, "vllm.chunked": True}
    assert joined.defaults_beside({"engine": "llama.cpp"}) == {"llama.cpp.seqs": None}
    assert joined.known_defaults() == {"engine": "vllm", "vllm.chunked": True}


def test_the_number_of_configurations_is_the_sum(joined: JoinedSpace) -> None:
    # vLLM: 3 x 2. llama.cpp: 4 threads, with seqs unset one, with 2 slots two values of unified: 4 x (1 + 2).
    assert joined.cardinality() == 6 + 12


def test_a_parameter_of_another_engine_is_refused(joined: JoinedSpace) -> None:
    with pytest.raises(SpaceError, match=r"llama\.cpp\.threads counts only with its own engine"):
        joined.complete({"engine": "vllm", "llama.cpp.threads": 2})
    with pytest.raises(SpaceError, match=r"has no parameter 'threads'"):
        joined.complete({"engine": "llama.cpp", "threads": 2})
    with pytest.raises(SpaceError, match=r"engine cannot be 'sglang'; it takes vllm, llama\.cpp"):
        joined.complete({"engine": "sglang"})


def test_named_configurations_name_their_engine(joined: JoinedSpace) -> None:
    assert dict(joined.named["llama.cpp=two"].config) == {"engine": "llama.cpp", "llama.cpp.threads": 2}
