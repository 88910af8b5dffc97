"""Kinds of engines: how they are found and asked, together and with commands."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from records import plugins
from records.trials import Provenance
from search_spaces import hardware_named
from tests.fakes.stub_engine import StubEngine
from tests.unit.engines.simulator.test_engine import NO_CACHE, spec
from tuner.cli.output.pages.setup import SHOWN_UNMET, _unmet
from tuner.engines import server
from tuner.engines.base import EngineInfo
from tuner.engines.command_line import (
    check_known_flags,
    check_server_arguments,
    check_values,
    program_of,
    sampling_arguments,
)
from tuner.engines.factory import SeveralEngines
from tuner.engines.kind import EngineKind, Feature, Found
from tuner.engines.kinds import kind_of, kinds, names, with_feature
from tuner.engines.server.flags import load_flags
from tuner.engines.server.unmet import unmet_requirements
from tuner.engines.simulator.engine import SimulatedEngine
from tuner.errors import SettingError, UserError
from tuner.settings.study import StudySettings
from tuner.specs import TrialSpec
from tuner.testing.engine import EngineContract
from tuner.use_cases.engines import chosen_engine

TOY = EngineKind("toy", "Toy", kind_of("vllm").build, lambda given: Found(Path(__file__), gpus=False))


def register(patch: pytest.MonkeyPatch, value: str) -> None:
    patch.setattr(plugins, "entry_points", lambda group: [EntryPoint("toy", value, group)])
    kinds.cache_clear()


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    yield monkeypatch
    kinds.cache_clear()


def test_each_name_leads_to_its_kind() -> None:
    assert names() == ("auto", "vllm", "llama.cpp", "openai", "sglang", "tensorrt-llm", "simulated")
    assert [kind_of(each).name for each in ("auto", "simulated", "simulated vllm", "vllm")] == ["vllm"] * 4
    assert with_feature(Feature.BESIDE_OTHERS) == ("vllm", "llama.cpp", "sglang")


def test_shared_code_names_no_engine() -> None:
    """Texts may name an engine, as a reason; variables, functions and classes do not."""
    words = ("vllm", "sglang", "llama", "tensorrt", "trtllm", "openai")
    found = {
        f"{path.name}: {name}"
        for path in Path(server.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (getattr(node, field, None) for field in ("id", "name", "arg", "attr", "asname"))
        if isinstance(name, str) and any(word in name.lower() for word in words)
    }
    assert found == set()


def test_an_unknown_engine_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match="no engine has this name; engines: auto, vllm, ") as refused:
        kind_of("vlm")
    assert (refused.value.field, refused.value.value) == ("engine", "vlm")


def test_a_registered_engine_is_found_and_its_limits_hold(patch: pytest.MonkeyPatch) -> None:
    register(patch, f"{__name__}:TOY")
    assert names()[-2:] == ("toy", "simulated")
    found = chosen_engine(StudySettings(engine="toy"))
    assert (found[0].name, found[0].executable, found[1].names) == ("toy", __file__, ("cpu",))
    with pytest.raises(SettingError, match="Toy has one GPU for a trial"):
        chosen_engine(StudySettings(engine="toy", gpus_per_trial=2))


@pytest.mark.parametrize("name", ["vllm", "llama.cpp", "sglang", "tensorrt-llm"])
def test_an_engine_that_is_loaded_at_its_first_use_is_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no"):
        kind_of(name).find(str(tmp_path / "none"))


def write(folder: Path, name: str, version: str, *requires: str) -> None:
    """Write the metadata of a distribution, without any module."""
    target = folder / f"{name}-{version}.dist-info"
    target.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (target / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires)]) + "\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_requirements_of_requirements_count_and_those_of_extras_do_not(folder: Path) -> None:
    write(
        folder,
        "made_engine",
        "1.0",
        "Made.Numbers<2.4",
        "made-chain",
        'absent; extra == "gpu"',
        'no; python_version < "3"',
    )
    write(folder, "made_numbers", "2.4.0")
    write(folder, "made_chain", "1.0", "made-numbers>=2", "made-deep==3", "absent-too", "made-engine")
    write(folder, "made_deep", "4.0rc1")
    assert unmet_requirements(Path(sys.executable), "made-engine") == [
        "Made.Numbers 2.4.0: made-engine needs <2.4",
        "absent-too is not installed: made-chain needs it",
        "made-deep 4.0rc1: made-chain needs ==3",
    ]


def test_a_whole_environment_has_none(folder: Path) -> None:
    write(folder, "made_engine", "1.0", "made-numbers>=2.4.0rc1")
    write(folder, "made_numbers", "2.4.0rc2")
    assert unmet_requirements(Path(sys.executable), "made-engine") == []


def test_a_missing_engine_or_interpreter_is_not_known(folder: Path) -> None:
    assert unmet_requirements(Path(sys.executable), "made-engine") is None
    assert unmet_requirements(folder / "python", "made-engine") is None


def test_many_are_cut() -> None:
    assert _unmet(None) == _unmet([]) == []
    lines = [f"p{number} 1: e needs 2" for number in range(SHOWN_UNMET + 2)]
    rows = _unmet(lines)
    assert [name for name, _ in rows] == ["unmet requirements", *[""] * SHOWN_UNMET]
    assert rows[-1][1] == "2 more, in --json"


def named(trial: TrialSpec, engine: str | None) -> TrialSpec:
    return replace(trial, launch=replace(trial.launch, engine=engine))


def simulated() -> SimulatedEngine:
    return SimulatedEngine(hardware_named("t4"), "0.15.1", frozenset())


@pytest.mark.parametrize("second", [False, True])
class TestContract(EngineContract):
    @pytest.fixture
    def engine(self, second: bool) -> SeveralEngines:
        other = StubEngine(lambda *_: {})
        return SeveralEngines({"a": other, "b": simulated()} if second else {"a": simulated(), "b": other})

    @pytest.fixture
    def good_spec(self, second: bool, tmp_path: Path) -> TrialSpec:
        return named(spec(tmp_path, "--max-num-seqs", "32"), "b" if second else "a")

    @pytest.fixture
    def failing_spec(self, second: bool, tmp_path: Path) -> TrialSpec:
        return named(spec(tmp_path, *NO_CACHE), "b" if second else "a")


def test_a_trial_runs_on_the_engine_it_names_and_without_a_name_on_the_first(tmp_path: Path) -> None:
    first, second = (StubEngine(lambda *_: {}) for _ in range(2))
    engines = SeveralEngines({"a": first, "b": second})
    (tmp_path / "artifacts").mkdir()
    trial = spec(tmp_path)
    for name in ("b", None, "a", "b"):
        engines.launch(named(trial, name), trial.limits)
    assert [each.launch.engine for each in first.launched] == [None, "a"]
    assert [each.launch.engine for each in second.launched] == ["b", "b"]
    engines.close()
    assert (first.closed, second.closed) == (True, True)


def test_the_installation_names_all_engines() -> None:
    info = SeveralEngines({"a": simulated(), "b": StubEngine(lambda *_: {})}).info()
    assert info.name == simulated().info().name
    assert [each.version for each in info.others] == ["0.0+stub"]


def test_vllm_takes_the_model_as_an_argument_and_names_it_only_if_the_name_differs() -> None:
    vllm = program_of("vllm")
    assert vllm.words("/m", "/m", ["--a", "1"]) == ("serve", "/m", "--a", "1")
    assert vllm.words("/m", "n", []) == ("serve", "/m", "--served-model-name", "n")


def test_llama_cpp_takes_flags_and_always_a_name() -> None:
    """Without an alias the server is asked for by the name of the file, not by its path."""
    assert program_of("llama.cpp").words("/m.gguf", "/m.gguf", ["-a", "1"]) == (
        *("--model", "/m.gguf", "--alias", "/m.gguf"),
        *("-a", "1"),
    )


def test_a_simulated_engine_has_vllm_s_program() -> None:
    assert program_of("simulated vllm") is program_of("vllm")


@pytest.mark.parametrize(
    ("temperature", "engine", "arguments"),
    [
        (None, "llama.cpp", ()),
        (0.0, "llama.cpp", ("--temp", "0")),
        (0.75, "llama.cpp", ("--temp", "0.75")),
        (0.0, "vllm", ("--override-generation-config", '{"temperature": 0.0}')),
    ],
)
def test_the_temperature_is_set_on_the_server(
    temperature: float | None, engine: str, arguments: tuple[str, ...]
) -> None:
    assert sampling_arguments(temperature, engine) == arguments


@pytest.mark.parametrize("flag", ["--host", "--port=1", "--alias", "-m", "--metrics"])
def test_the_tuner_s_own_flags_of_llama_cpp_are_refused(flag: str) -> None:
    with pytest.raises(SettingError, match="the tuner sets this flag; leave it out"):
        check_server_arguments([flag], "llama.cpp")


@pytest.mark.parametrize(
    ("engine", "flag", "message"),
    [
        ("vllm", "--served_model_name=x", "--served_model_name': the tuner sets this flag; leave it out"),
        ("vllm", "--config", "a study would not know the flags in the file; give them here"),
        ("sglang", "--config=serve.yaml", "a study would not know the flags in the file; give them here"),
        ("vllm", "--nnodes", "the tuner sets this flag; give nodes_per_trial"),
        ("sglang", "--nnodes", "a server of SGLang has one node, and the tuner chooses its GPUs; leave it out"),
        ("sglang", "--base-gpu-id=1", "a server of SGLang has one node, and the tuner chooses its GPUs; leave it out"),
    ],
)
def test_what_a_study_cannot_know_or_chooses_itself_is_refused(engine: str, flag: str, message: str) -> None:
    with pytest.raises(SettingError) as raised:
        check_server_arguments([flag, "1"], engine)
    assert message in str(raised.value)


def test_flags_of_the_other_engine_are_no_mistake_here() -> None:
    check_server_arguments(["--metrics"], "vllm")
    check_server_arguments(["--uds", "x"], "llama.cpp")


def test_a_flag_that_the_installed_engine_lacks_is_refused_with_its_own_help() -> None:
    engine = EngineInfo("llama.cpp", "6711", None, frozenset({"--parallel"}), Provenance.MEASURED)
    check_known_flags(["--parallel", "4", "-np", "4"], engine)
    with pytest.raises(SettingError, match=r"llama\.cpp 6711 has no such flag; did you mean --parallel\?"):
        check_known_flags(["--paralel", "4"], engine)
    with pytest.raises(SettingError, match=r"llama\.cpp 6711 has no such flag; see `llama-server --help`"):
        check_known_flags(["--zzz"], engine)


def test_short_flags_are_checked_where_the_engine_s_are_known() -> None:
    names = frozenset({"--quantization", "-q", "--optimization-level", "--compilation-config", "-cc", "--max-num-seqs"})
    engine = EngineInfo("vllm", "0.32.0", "vllm", names, Provenance.MEASURED)
    known = ["-q", "fp8", "-O3", "-O", "1", "-O.mode", "3", "-cc.custom_ops+", "-rms_norm", "--max_num_seqs=-1"]
    check_known_flags(known, engine)
    for wrong in ("-qfp8", "-s", "-n2"):
        with pytest.raises(SettingError, match=f"server_arguments='{wrong}': vllm 0.32.0 has no such flag"):
            check_known_flags([wrong, "1"], engine)


def test_values_that_the_engine_s_parser_refuses_end_a_study_before_its_first_launch() -> None:
    """`--instances` is a flag of the tuner's own launcher."""
    flags = load_flags(Path(__file__).parents[2] / "data" / "vllm_flags" / "0.32.0.json", "vLLM")
    assert flags is not None
    engine = EngineInfo("vllm", "0.32.0", "vllm", flags.names, Provenance.MEASURED, parser=flags)
    good = ["--max-num-seqs", "8", "-O3", "-cc.mode", "3", "--instances", "2", "--instances=2"]
    check_values([*good, "--max-model-len", "32k"], engine)
    for wrong, rule in (
        (["--max_num_seqs", "é"], "'é' is not a whole number; correct it after `--`"),
        (["--max-num-seqs"], "--max-num-seqs: a value is missing; correct it after `--`"),
        (["--kv-cache-dtype", "fp7"], "--kv-cache-dtype: 'fp7' is not one of"),
    ):
        with pytest.raises(SettingError, match=rule):
            check_values(wrong, engine)
    check_values(["--max-num-seqs", "é"], EngineInfo("openai", "1", None, None, Provenance.MEASURED))
