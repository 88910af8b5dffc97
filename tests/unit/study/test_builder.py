"""A study's specification: its context and given configurations."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from records.trials import Provenance, TrialKind
from search_spaces import hardware_named
from storage.store import open_store
from tests.contracts.space_contract import QWEN
from tests.model_configs import CONFIG_7B, SMALL_QWEN, TINY_QWEN
from tuner.clock import RealClock
from tuner.engines.base import EngineInfo
from tuner.errors import SettingError, UserError
from tuner.settings.study import ConfirmationSettings, StudySettings
from tuner.study.run import open_study
from tuner.study.specification import builder
from tuner.study.specification.builder import build_spec, with_stored_parameters
from tuner.study.specification.find_model import find_model, longest_context
from tuner.study.specification.plan import gpus_of_engines, gpus_of_trial, plan_study, settings_of_engine
from tuner.study.specification.resolve_workload import make_goals
from tuner.study.specification.spec import ServerSettings, StudySpec
from tuner.workloads.spec import ClosedLoop

INFO = EngineInfo("vllm", "0.32.0", "/vllm", None, Provenance.MEASURED, None)


def spec_of(model: str, folder: Path, card: str = "t4", **settings: Any) -> StudySpec:
    plan = plan_study(StudySettings(**{"model": model, **settings}))
    return build_spec(plan, INFO, hardware_named(card), folder)


@pytest.fixture
def model(tmp_path: Path) -> str:
    config = {**SMALL_QWEN, "max_position_embeddings": 2048, "tie_word_embeddings": True}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_the_default_settings_are_the_published_study(model: str, tmp_path: Path) -> None:
    spec = spec_of(model, tmp_path)
    assert spec.name == "model"
    assert [str(o) for o in spec.goals.objectives] == ["output_throughput:40", "p99_tpot_ms:20", "p99_ttft_ms:15"]
    assert [str(s) for s in spec.goals.slos] == ["p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1"]
    assert [o.metric for o in spec.goals.scored][-1] == "success_rate"
    assert spec.server == ServerSettings()
    assert spec.confirmation == ConfirmationSettings(finalists=3, confirm_rounds=3, baseline_repeats=3)


@pytest.mark.parametrize(("provenance", "offered"), [(Provenance.MEASURED, False), (Provenance.SIMULATED, True)])
def test_a_simulated_card_is_in_a_machine_with_other_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provenance: Provenance, offered: bool
) -> None:
    """128 GiB for the KV cache are more than 80 % of the 16 GiB of this host."""
    monkeypatch.setattr(builder, "host_limits", lambda: {"host_memory_gib": 16.0})
    plan = plan_study(StudySettings(model="Qwen/Qwen3-8B", space="kv-offload"), simulated=True)
    info = replace(INFO, version="0.25.1", provenance=provenance)
    (parameter,) = [
        each
        for each in build_spec(plan, info, hardware_named("h100"), tmp_path).space.parameters
        if each.name == "kv_offloading_size"
    ]
    assert (128 in parameter.values) is offered


@pytest.mark.parametrize(
    ("changes", "searched"),
    [
        ({}, 100),
        ({"search_load": 1.0}, 200),
        ({"confirm_rounds": 0}, 200),
        ({"baseline_repeats": 0}, 200),
    ],
)
def test_the_search_sends_fewer_requests_only_if_there_are_rounds(
    model: str, tmp_path: Path, changes: dict[str, Any], searched: int
) -> None:
    spec = spec_of(model, tmp_path, **{"search_load": 0.5, **changes})
    for kind in (TrialKind.BASELINE, TrialKind.ENQUEUED, TrialKind.SEARCH):
        workload = spec.trial(1, 0, 1, kind, {}).workload
        assert isinstance(workload, ClosedLoop)
        assert workload.num_prompts == searched
    confirming = spec.trial(1, 1, 1, TrialKind.CONFIRM, {}).workload
    assert isinstance(confirming, ClosedLoop)
    assert (confirming.num_prompts, confirming.seed) == (200, 2000)
    premise = spec.premise(INFO, ["Tesla T4"])
    assert premise["workload"]["num_prompts"] == 200
    assert premise.get("search") == (None if searched == 200 else {"num_prompts": 100})


def test_traffic_is_never_shortened(model: str, tmp_path: Path) -> None:
    spec = spec_of(model, tmp_path, "l4", preset="phi4-mini-l4", search_load=0.5)
    assert spec.searched_workload == spec.workload
    assert "search" not in spec.premise(INFO, ["NVIDIA L4"])


def test_temperature_is_set_on_the_server(model: str, tmp_path: Path) -> None:
    spec = spec_of(model, tmp_path, preset="qwen2.5-0.5b-t4-greedy")
    assert spec.server.arguments == ("--override-generation-config", '{"temperature": 0.0}')


def test_the_search_space_has_the_published_configurations(model: str, tmp_path: Path) -> None:
    enqueue = ("suffix", "winner-flags")
    spec = spec_of(model, tmp_path, preset="qwen2.5-0.5b-t4-greedy", enqueue=enqueue)
    suffix, winner = (spec.trial(1, 0, 1, TrialKind.ENQUEUED, e.config).launch.argv for e in spec.enqueue)
    assert json.loads(suffix[suffix.index("--speculative-config") + 1])["method"] == "suffix"
    assert "--dtype" not in suffix, "a T4 takes float16 by itself"
    joined = " ".join(winner)
    assert "--max-num-seqs 50 --max-num-batched-tokens 25600" in joined
    assert "--cudagraph-capture-sizes 1 2 4 8 16 24 32 40 50" in joined


def test_on_a_cpu_the_default_space_is_the_cpus(model: str) -> None:
    assert plan_study(StudySettings(model=model), on_cpu=True).space.name == "cpu"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preset": "nope"}, "preset='nope'"),
        ({"study": "a/b"}, "study='a/b': a name starts with a letter or digit and has no slash"),
        ({"space": "nope"}, "nope"),
        ({"sampler": "gp"}, "sampler='gp'.*samplers: auto, residual, tpe"),
        ({"repeats": 0}, "repeats=0: at least 1 is needed"),
        ({"search_load": 1.5}, "search_load=1.5: at most 1 is possible"),
        ({"finalists": 0}, "finalists=0: at least 1 is needed"),
        ({"slo": ("p99_tpot<50",)}, "slo='p99_tpot<50'.*p99_tpot_ms"),
        ({"objective": ("speed",)}, "objective='speed'"),
        ({"objective": ("p99_tpot_ms", "p99_tpot_ms:3")}, "objective='p99_tpot_ms': .*given twice"),
        ({"max_concurrency": 0}, "max_concurrency=0"),
        (
            {"input_len": 2000, "output_len": 100},
            r"2000 \+ 100 tokens exceed the model's context of 2048; lower input_len or output_len",
        ),
        ({"server_arguments": ("--port", "1")}, "server_arguments='--port': the tuner sets this flag"),
        ({"server_arguments": ("--host=0.0.0.0",)}, "server_arguments='--host'"),
        ({"server_arguments": ("stray",)}, "server_arguments='stray': the first argument of a server is a flag"),
        ({"only": ("max_num_seqz",)}, "only='max_num_seqz'.*did you mean max_num_seqs?"),
        ({"enqueue": ("nonsense",)}, "enqueue='nonsense'.*known: "),
        ({"enqueue": ('{"max_seqs": 1}',)}, "has no parameter 'max_seqs'"),
        ({"enqueue": ("{max_num_seqs: 64}",)}, "not valid JSON .* at character 2"),
    ],
)
def test_mistakes_are_one_line(model: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        plan_study(StudySettings(**{"model": model, **changes}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": ("suffix_tokens",)}, "suffix_tokens counts only when"),
        ({"enqueue": ('{"max_num_seqs": "many"}',)}, "enqueue='.*max_num_seqs"),
        ({"enqueue": ('{"kv_cache_dtype": "fp8"}',)}, "enqueue='.*kv_cache_dtype"),
    ],
)
def test_mistakes_about_the_card_s_space(model: str, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        spec_of(model, tmp_path, **changes)


def test_a_checkpoint_that_no_choice_takes_is_refused(model: str) -> None:
    message = "checkpoint='awk': space 'vllm' has no choice with such a checkpoint; it has awq, gptq"
    with pytest.raises(UserError, match=message):
        plan_study(StudySettings(model=model, checkpoint={"awk": "folder"}))


def test_a_model_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no config\.json"):
        find_model(str(tmp_path / "nothing"), None)
    with pytest.raises(UserError, match="neither a folder nor a hub name"):
        find_model("a b c", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        find_model("nobody/nothing", None)


def test_a_model_in_the_hubs_cache_has_a_shape(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text((Path(model) / "config.json").read_text())
    reference, shape = find_model("org/name", None)
    assert reference.served_name == "org/name"
    assert shape is not None
    assert shape.layers == 4


def test_scored_includes_success_unless_the_user_names_it() -> None:
    assert [o.metric for o in make_goals(["p99_tpot_ms"], []).scored] == ["p99_tpot_ms", "success_rate"]
    assert [o.weight for o in make_goals(["success_rate:3"], []).scored] == [3.0]


def test_trust_remote_code_is_only_set_by_the_user(model: str, tmp_path: Path) -> None:
    default = spec_of(model, tmp_path)
    assert "--trust-remote-code" not in default.trial(0, 0, 1, TrialKind.BASELINE, {}).launch.base_argv
    given = spec_of(model, tmp_path, server_arguments=("--trust-remote-code",))
    assert "--trust-remote-code" in given.trial(0, 0, 1, TrialKind.BASELINE, {}).launch.base_argv


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpus_per_trial": 0}, "gpus_per_trial=0: at least 1 is needed"),
        (
            {"gpus_per_trial": 2, "server_arguments": ("--tensor-parallel-size", "2", "-dp", "2")},
            "gpus_per_trial=2: the server's own flags need 4 GPUs; give 4, or leave it out",
        ),
        (
            {"server_arguments": ("--tensor-parallel-size", "3")},
            "the model has 4 attention heads, which 3 does not divide; choose a divisor",
        ),
        ({"nodes_per_trial": 0}, "nodes_per_trial=0: at least 1 is needed"),
        (
            {"gpus_per_trial": 3, "nodes_per_trial": 2},
            "gpus_per_trial=3: each node of a trial has as many GPUs, and 2 nodes do not divide them; give a multiple",
        ),
        (
            {"gpus_per_trial": 4, "nodes_per_trial": 2, "server_arguments": ("-pp", "3")},
            "nodes_per_trial=2: the server's own flags need 3 GPUs, which 2 nodes cannot share evenly",
        ),
        (
            {"nodes_per_trial": 2, "server_arguments": ("--instances", "2")},
            "server_arguments='--instances': instances start on one machine, and a trial has 2 nodes",
        ),
    ],
)
def test_servers_that_need_other_gpus_are_refused(model: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        plan_study(StudySettings(model=model, **settings))
    assert message in str(error.value)


def test_a_trial_has_the_gpus_that_its_servers_need(model: str, tmp_path: Path) -> None:
    fixed = spec_of(model, tmp_path, "h200", server_arguments=("--tensor-parallel-size", "2"), price=3.0)
    assert fixed.gpus == 2
    assert fixed.goals.objectives[0].metric == "output_throughput"
    assert fixed.trial(0, 0, 1, TrialKind.BASELINE, {}).price_per_hour == 6.0
    searched = spec_of(model, tmp_path, "h200", gpus_per_trial=2, price=3.0)
    assert searched.goals.objectives[0].metric == "output_throughput_per_gpu"
    assert searched.trial(0, 0, 1, TrialKind.BASELINE, {}).price_per_hour == 3.0
    spread = spec_of(model, tmp_path, "h200", nodes_per_trial=2)
    assert (spread.gpus, spread.space.context.nodes, spread.facts["nodes"]) == (2, 2, 2)
    half = searched.trial(1, 0, 1, TrialKind.SEARCH, {"data_parallel_size": 2})
    assert (half.price_per_hour, half.gpus, half.launch.gpus(2)) == (6.0, 2, 2)


def test_a_study_continues_without_the_configuration_that_an_earlier_run_enqueued(model: str, tmp_path: Path) -> None:
    first, plan = spec_of(model, tmp_path, enqueue=('{"stream_interval": 8}',)), plan_study(StudySettings(model=model))
    later = build_spec(plan, INFO, hardware_named("t4"), tmp_path)
    names = [{parameter.name for parameter in spec.space.parameters} for spec in (first, later)]
    assert names[0] - names[1] == {"stream_interval"}
    store = open_store(f"sqlite:///{tmp_path / 'tuner.db'}")
    assert with_stored_parameters(plan, later, INFO, store) == later
    open_study(store, first, INFO, ["Tesla T4"], RealClock())
    open_study(store, with_stored_parameters(plan, later, INFO, store), INFO, ["Tesla T4"], RealClock())
    with pytest.raises(UserError, match="search space"):
        open_study(store, later, INFO, ["Tesla T4"], RealClock())
    store.close()


def choices(spec: StudySpec) -> Any:
    return spec.space.choices()["quantization"]


def test_an_enqueued_configuration_adds_only_the_choices_that_it_has(model: str, tmp_path: Path) -> None:
    assert choices(spec_of(model, tmp_path, "h200")) == [None, "fp8", "fp8_per_block"]
    named = spec_of(model, tmp_path, "h200", enqueue=('{"quantization": "fp8", "stream_interval": 8}',))
    assert choices(named) == [None, "fp8", "fp8_per_block"]
    asked = spec_of(model, tmp_path, "h200", enqueue=('{"quantization": "fp8_per_channel"}',))
    assert choices(asked) == [None, "fp8", "fp8_per_block", "fp8_per_channel"]
    assert choices(spec_of(model, tmp_path, "h200", only=("quantization",))) == choices(asked)


def test_a_study_continues_with_the_choices_that_it_began_with(model: str, tmp_path: Path) -> None:
    """Optuna refuses a categorical parameter whose choices change; a package may be installed between two runs."""
    store = open_store(f"sqlite:///{tmp_path / 'tuner.db'}")
    with_package = replace(INFO, version="0.25.1", packages=frozenset({"bitsandbytes"}))
    without = replace(with_package, packages=frozenset())

    def run_of(study: str, engine: EngineInfo, *enqueue: str) -> StudySpec:
        plan = plan_study(StudySettings(study=study, model=model, enqueue=enqueue))
        spec = build_spec(plan, engine, hardware_named("h200"), tmp_path)
        return with_stored_parameters(plan, spec, engine, store)

    asked = '{"quantization": "fp8_per_channel"}'
    open_study(store, run_of("plain", without), without, ["H200"], RealClock())
    assert choices(run_of("plain", with_package)) == [None, "fp8", "fp8_per_block"]
    assert choices(run_of("new", with_package)) == [None, "fp8", "fp8_per_block", "bitsandbytes"]
    with pytest.raises(UserError, match="quantization cannot be 'fp8_per_channel': the study began without it"):
        run_of("plain", without, asked)

    open_study(store, run_of("asked", without, asked), without, ["H200"], RealClock())
    assert choices(run_of("asked", without)) == [None, "fp8", "fp8_per_block", "fp8_per_channel"]

    open_study(store, run_of("four bits", with_package), with_package, ["H200"], RealClock())
    with pytest.raises(UserError, match="began with quantization=bitsandbytes, which is not possible any more: bits"):
        run_of("four bits", without)
    store.close()


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("engine", "line", "tokens"),
    [
        ("vllm", "", 32768),
        ("vllm", "--max-model-len 131072", 131072),
        ("vllm", "--max_model_len=16k", 16000),
        ("vllm", "--max-model-len 600 --max-model-len 700", 700),
        ("vllm", "--max-model-len auto", 32768),
        ("vllm", "--max-model-len -1", 32768),
        ("vllm", '--hf-overrides {"max_position_embeddings":65536}', None),
        ("sglang", "--context-length 65536", 65536),
        ("sglang", "--context-length 600", 32768),
        ("sglang", '--json-model-override-args {"a":1}', None),
        ("llama.cpp", "-c 65536", 65536),
        ("llama.cpp", "--ctx-size 0", 32768),
        ("openai", "--max-model-len 131072", 32768),
    ],
)
def test_a_server_s_flag_decides(engine: str, line: str, tokens: int | None) -> None:
    assert longest_context(QWEN, engine, line.split()) == tokens


def test_an_unknown_model_has_the_flag_s_context() -> None:
    assert longest_context(None, "vllm", ["--max-model-len", "4096"]) == 4096
    assert longest_context(None, "vllm", []) is None


def plan(folder: Path, tokens: int, *arguments: str, **config: object) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG_7B, "model_type": "qwen2", **config}))
    load = {"input_len": tokens, "output_len": 100, "max_concurrency": 2, "num_prompts": 4}
    plan_study(StudySettings(model=str(folder), server_arguments=arguments, **load))  # type: ignore[arg-type]


def test_a_measured_study_sends_what_yarn_allows(tmp_path: Path) -> None:
    plan(tmp_path, 60_000, rope_scaling=YARN)
    plan(tmp_path, 60_000, "--max-model-len", "131072", rope_scaling=YARN)
    plan(tmp_path, 60_000, "--max-model-len", "131072")  # vLLM decides, by its version and environment
    with pytest.raises(SettingError, match=r"131000 \+ 100 tokens exceed the model's context of 131072"):
        plan(tmp_path, 131_000, rope_scaling=YARN)
    with pytest.raises(SettingError, match=r"60000 \+ 100 tokens exceed the model's context of 32768"):
        plan(tmp_path, 60_000)
    with pytest.raises(SettingError, match=r"600 \+ 100 tokens exceed the model's context of 512"):
        plan(tmp_path, 600, "--max-model-len", "512")


ENGINES = ("vllm", "llama.cpp")


def part(settings: StudySettings, engine: str) -> StudySettings:
    return settings_of_engine(settings, engine, ENGINES, on_cpu=True)


def flags(*words: str) -> list[tuple[str, ...]]:
    """Return the server's flags of both engines."""
    settings = StudySettings(model="folder", other_models=("m.gguf",), server_arguments=words)
    return [tuple(part(settings, engine).server_arguments) for engine in ENGINES]


@pytest.mark.parametrize(
    ("given", "of_vllm", "of_llama"),
    [
        (("folder", "m.gguf"), "folder", "m.gguf"),
        (("m.gguf", "folder"), "folder", "m.gguf"),
        (("llama.cpp=m.gguf", "vllm=other.gguf"), "other.gguf", "m.gguf"),
        (("vllm=a=b", "m.gguf"), "a=b", "m.gguf"),
        (("llama.cpp=m.gguf",), None, "m.gguf"),
    ],
)
def test_a_model_belongs_to_the_engine_it_names_or_whose_format_it_has(
    given: tuple[str, ...], of_vllm: str | None, of_llama: str
) -> None:
    settings = StudySettings(model=given[0], other_models=given[1:])
    assert [part(settings, engine).model for engine in ENGINES] == [of_vllm, of_llama]


def test_the_tokenizer_and_the_checkpoints_are_those_of_the_default_engine() -> None:
    given = {"tokenizer": "words", "checkpoint": {"awq": "quantized"}, "draft_model": "draft"}
    settings = StudySettings(model="folder", other_models=("m.gguf",), **given)  # type: ignore[arg-type]
    vllm, llama = (part(settings, engine) for engine in ENGINES)
    assert vllm == StudySettings(model="folder", **given)  # type: ignore[arg-type]
    assert llama == StudySettings(model="m.gguf")


def test_flags_after_an_engines_name_are_its_own() -> None:
    assert flags("--seed", "1") == [("--seed", "1"), ()]
    assert flags("--seed", "1", "llama.cpp=", "--threads", "8") == [("--seed", "1"), ("--threads", "8")]
    assert flags("llama.cpp=--threads", "8", "vllm=", "--seed", "1") == [("--seed", "1"), ("--threads", "8")]


def test_spaces_and_starting_points_without_a_name_are_those_of_the_default_engine() -> None:
    settings = StudySettings(
        model="folder",
        other_models=("m.gguf",),
        space="cpu",
        other_spaces=("llama.cpp=my.yaml",),
        enqueue=("a", "llama.cpp=b"),
        baseline="llama.cpp=base",
    )
    vllm, llama = (part(settings, engine) for engine in ENGINES)
    assert (vllm.space, vllm.enqueue, vllm.baseline) == ("cpu", ("a",), None)
    assert (llama.space, llama.enqueue, llama.baseline) == ("my.yaml", ("b",), "base")


def test_a_parameter_is_searched_by_each_engine_that_has_it_or_that_it_names() -> None:
    only = ("max_num_seqs", "parallel", "llama.cpp.flash_attn")
    settings = StudySettings(model="folder", other_models=("m.gguf",), space="cpu", only=only)
    assert part(settings, "vllm").only == ("max_num_seqs",)
    assert part(settings, "llama.cpp").only == ("parallel", "flash_attn")


def test_a_study_of_one_engine_may_name_it() -> None:
    settings = StudySettings(model="vllm=folder")
    assert settings_of_engine(settings, "vllm", ("vllm",), on_cpu=True).model == "folder"
    with pytest.raises(SettingError, match=r"this study runs vllm, not llama\.cpp"):
        settings_of_engine(StudySettings(model="llama.cpp=m.gguf"), "vllm", ("vllm",), on_cpu=True)


@pytest.mark.parametrize(
    ("words", "asked", "gpus"),
    [
        (("-tp", "2"), None, 2),
        (("sglang=", "--tp-size", "4"), None, 4),
        (("-tp", "4", "sglang=", "--tp-size", "2"), None, 4),  # not the last one
        (("-tp", "2"), 8, 8),
        ((), None, 1),
    ],
)
def test_a_trial_has_the_gpus_of_the_engine_that_needs_most(
    words: tuple[str, ...], asked: int | None, gpus: int
) -> None:
    settings = StudySettings(server_arguments=words, gpus_per_trial=asked)
    assert gpus_of_engines(settings, ("vllm", "sglang")) == gpus


def test_all_engines_of_a_study_have_the_same_gpus(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_QWEN), encoding="utf-8")
    words = ("sglang=", "--tp-size", "2")
    plan = plan_study(StudySettings(model=str(tmp_path), server_arguments=words), ("vllm", "sglang"), card="h200")
    assert [gpus_of_trial(each.settings) for each in plan.every] == [2, 2]
