"""Mistakes with engines other than vLLM: one line, exit code 2, and nothing is written."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.cli.command import refused, run_here
from tests.gguf_model import write_model
from tests.tensorrt_llm_program import VERSION, write_program
from tuner.errors import SettingError
from tuner.service.asked.check import check_plan
from tuner.settings.study import StudySettings

SITE = Path(__file__).parents[1] / "fakes" / "sglang_site"
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = {"model_type": "qwen2", "intermediate_size": 128, "vocab_size": 41, "max_position_embeddings": 2048, **SHAPE}
SPACE = """
engine: openai
parameters:
  slots: {description: Answers at a time., type: categorical, choices: [null, 1, 2], flag: --slots}
"""
COMMAND = ("--server-command", "python3 serve.py --port {port}")
COMPLETE = (*COMMAND, "--space", "my.yaml", "--model", "made.gguf")
NAMES = {"llama.cpp": "llama.cpp", "sglang": "SGLang", "tensorrt-llm": "TensorRT-LLM", "openai": "a command"}
PROGRAMS = {"llama.cpp": "--llama-server", "sglang": "--sglang", "tensorrt-llm": "--trtllm-serve"}
ENGINES = [pytest.param(name, marks=pytest.mark.program("libgomp1") if name == "llama.cpp" else ()) for name in NAMES]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, spaces, a Python that has SGLang, and a `trtllm-serve`."""
    folder = tmp_path_factory.mktemp("made")
    write_model(folder / "made.gguf")
    (folder / "text.gguf").write_text("hello")
    (folder / "my.yaml").write_text(SPACE)
    (folder / "of_vllm.yaml").write_text(SPACE.replace("engine: openai", ""))
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    write_program(folder / "bin")
    words = shlex.join(["exec", "env", f"PYTHONPATH={SITE}", sys.executable])
    (folder / "sglang").write_text(f'#!/bin/sh\n{words} "$@"\n', encoding="utf-8")
    (folder / "sglang").chmod(0o755)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """An empty folder to run in, below one with links to what was made."""
    for each in made.iterdir():
        (tmp_path / each.name).symlink_to(each)
    here = tmp_path / "here"
    here.mkdir()
    return here


def complete(engine: str, folder: Path, argv: tuple[str, ...]) -> list[str]:
    """Return a command that is right but for `argv`, which may name the model and the program itself."""
    given = {
        "llama.cpp": {"--model": "made.gguf"},
        "sglang": {"--model": "model", "--sglang": "sglang"},
        "tensorrt-llm": {"--model": "model", "--trtllm-serve": "bin/trtllm-serve"},
        "openai": {},
    }[engine]
    words = [word for name, path in given.items() if name not in argv for word in (name, str(folder.parent / path))]
    files = {"my.yaml", "of_vllm.yaml", "made.gguf", "text.gguf"}
    own = [str(folder.parent / word) if word in files else word for word in argv]
    return ["optimize", "--engine", engine, *words, *own]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--space", "cpu"), "--space 'cpu': this space has the flags of vllm, and the study runs {engine};"),
        (("--vllm", "/bin/vllm"), "--vllm '/bin/vllm': this setting is for vLLM, and this study runs {name};"),
        (("--gpu", "t4"), "--gpu 't4': this setting is for a simulation, and this study is measured"),
        (("--ray-address", "h:1"), "--ray-address 'h:1': {name} runs on this machine only;"),
        (("--slo", "quality>=0.99"), "--slo 'quality>=0.99': quality is measured with vLLM only, not with {engine}"),
    ],
)
def test_what_is_for_vllm_only_is_refused(folder: Path, engine: str, argv: tuple[str, ...], message: str) -> None:
    start = COMPLETE if engine == "openai" and argv[0] != "--space" else COMMAND if engine == "openai" else ()
    printed = run_here(folder, *complete(engine, folder, (*start, *argv)))
    refused(printed, folder, message.format(engine=engine, name=NAMES[engine]))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--model", "none.gguf"), "--model 'none.gguf': there is no such file, and llama.cpp serves a GGUF file;"),
        (("--model", "text.gguf"), "text.gguf': no GGUF file: it starts with b'hell', and a GGUF file starts"),
        (("--llama-server", "none"), "--llama-server 'none': there is no such file; name the"),
        (("--input-len", "9999"), "requests of 9999 + 512 tokens exceed the model's context of 2048"),
        (("--input-len", "9", "--", "-m", "b.gguf"), "server argument '-m': the tuner sets this flag"),
        (("--enqueue", "seqs-256"), "--enqueue 'seqs-256': "),
        (("--workers", "0"), "--workers '0': at least 1 is needed"),
    ],
)
@pytest.mark.program("libgomp1")
def test_mistakes_with_llama_cpp(folder: Path, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(folder, *complete("llama.cpp", folder, argv)), folder, message)


@pytest.mark.program("libgomp1")
def test_llama_cpp_needs_a_model(folder: Path) -> None:
    message = "llama.cpp serves a GGUF file, and none is given; give a GGUF file by --model FILE"
    refused(run_here(folder, "optimize", "--engine", "llama.cpp"), folder, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--model", "/none"), "--model '/none': the folder has no config.json"),
        (("--sglang", "none"), "--sglang 'none': there is no such file; name the Python that has SGLang"),
        (("--sglang", sys.executable), "has no SGLang; name the Python that has SGLang, such as VENV/bin/python"),
        (("--temperature", "0.5"), "--temperature 0.5: SGLang has no flag for it; set it in the model's generation"),
        (("--gpus-per-trial", "2"), "--gpus-per-trial 2: this machine has no GPU; leave it out"),
        (("--", "--tp-size", "8"), "the model has 4 attention heads, which 8 does not divide; choose a divisor"),
        (("--", "--page-size", "small"), "--page-size: 'small' is not a whole number; correct it after `--`"),
        (("--", "--enable-metrics"), "server argument '--enable-metrics': the tuner sets this flag"),
        (("--", "--api-key", "literal"), "server argument '--api-key': a secret is not given literally"),
    ],
)
def test_mistakes_with_sglang(folder: Path, without_ray: None, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(folder, *complete("sglang", folder, argv)), folder, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--gpus-per-trial", "2"), "--gpus-per-trial 2: "),
        (("--trtllm-serve", "none"), "--trtllm-serve 'none': there is no such file; name the trtllm-serve of its"),
        (("--trtllm-serve", "/bin/true"), "/bin/true is not the script that TensorRT-LLM installs; name the"),
        (("--temperature", "0.5"), "--temperature 0.5: TensorRT-LLM has no flag for it; leave it out here"),
        (("--", "--config", "my.yaml"), "server argument '--config': the tuner sets this flag; give each option as"),
        (("--", "--config.a.b"), "server argument '--config.a.b': a value is missing; give it as --config.KEY VALUE"),
        (("--", "--max-batch-size", "8"), "tensorrt-llm 1.3.0rc7 has no such flag"),
        (("--", "--tp_size", "2"), "server argument '--tp_size': the tuner sets this flag; leave it out: a trial of"),
    ],
)
def test_mistakes_with_tensorrt_llm(folder: Path, without_ray: None, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(folder, *complete("tensorrt-llm", folder, argv)), folder, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "this engine starts a command, and none is given; give --server-command 'PROGRAM ARGUMENTS', with {port}"),
        (("--server-command", "python3 serve.py"), "no argument has {port}, and each trial has a port of its own; add"),
        (("--server-command", "no-such --port {port}"), "--server-command 'no-such': there is no such program; name a"),
        (COMMAND, "no space that is shipped has them; give --space FILE.yaml, with the line 'engine: openai'"),
        ((*COMMAND, "--space", "of_vllm.yaml"), "the study runs openai; write 'engine: openai' into it"),
        ((*COMMAND, "--space", "my.yaml"), "give the name that /v1/models lists by --model NAME"),
        ((*COMPLETE, "--tokenizer", "."), "there is no tokenizer.json; give the model's by --tokenizer: a folder with"),
        ((*COMPLETE, "--temperature", "0"), "--temperature 0: the flag of the temperature is not known for a command"),
        ((*COMPLETE, "--llama-server", "x"), "--llama-server 'x': this setting is for llama.cpp, and this study runs"),
        (
            ("--server-command", "python3 x {port} --api-key abcdefgh", *COMPLETE[2:]),
            "server argument '--api-key': a secret is not given literally",
        ),
        (
            ("--server-command", "python3 x {port} --api-key ${NO_SUCH_KEY}", *COMPLETE[2:]),
            "--server-command '${NO_SUCH_KEY}': the environment has no variable NO_SUCH_KEY",
        ),
    ],
)
def test_mistakes_with_a_command(folder: Path, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(folder, *complete("openai", folder, argv)), folder, message)


def test_an_engine_that_is_not_installed_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.engines.llama_cpp.engine.PACKAGE", "no_such_package")
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("TUNER_LLAMA_SERVER", "TUNER_TRTLLM_SERVE"):
        monkeypatch.delenv(name, raising=False)
    done = run_here(folder, *complete("llama.cpp", folder, ()))
    assert done.err == (
        "tuner: no llama.cpp found: no llama-server on PATH, and the package no_such_package is not installed; "
        "`pip install xllamacpp`, or put llama-server on PATH or its path into TUNER_LLAMA_SERVER\n"
    )
    done = run_here(folder, "optimize", "--engine", "tensorrt-llm", "--model", str(folder.parent / "model"))
    refused(done, folder, "no TensorRT-LLM found: no trtllm-serve on PATH; install one by NVIDIA's guide")


@pytest.mark.parametrize("engine", NAMES)
def test_another_engine_refuses_the_space_and_the_program(folder: Path, engine: str) -> None:
    simulated = ("optimize", "--engine", "simulated", "--trials", "1")
    program = COMMAND if engine == "openai" else (PROGRAMS[engine], "/bin/true")
    rule = f"this setting is for {NAMES[engine]}, and this study runs vLLM; add --engine {engine}"
    refused(run_here(folder, *simulated, *program), folder, rule)
    if engine != "openai":
        rule = f"--space '{engine}': this space has the flags of {engine}, and the study runs vllm"
        refused(run_here(folder, *simulated, "--space", engine), folder, rule)


@pytest.mark.parametrize(
    ("argv", "title", "parameter"),
    [
        (
            ("llama.cpp", "--gpu", "cpu", "--model", "made.gguf"),
            "llama.cpp on CPU for {made.gguf}, llama.cpp of any version",
            "cache_type_v *",
        ),
        (("sglang", "--gpu", "h200"), "sglang on NVIDIA H200, SGLang of any version", "max_running_requests"),
        (
            ("tensorrt-llm", "--gpu", "h200"),
            "tensorrt-llm on NVIDIA H200, TensorRT-LLM of any version",
            "kv_memory_fraction",
        ),
        (("openai", "--space", "my.yaml", "--gpu", "cpu"), "my on CPU, a command of any version", "slots"),
    ],
)
def test_the_space_of_an_engine_is_shown(folder: Path, argv: tuple[str, ...], title: str, parameter: str) -> None:
    words = [str(folder.parent / word) if word in ("my.yaml", "made.gguf") else word for word in argv]
    shown = run_here(folder, "space", "--engine", *words)
    assert shown.code == 0
    heading = title.replace("{made.gguf}", str(folder.parent / "made.gguf"))
    assert f"search space {heading}" in " ".join(shown.out.split())
    assert parameter in shown.out
    assert "max_num_seqs" not in shown.out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--engine", "llama.cpp", "--space", "cpu"), "this space has the flags of vllm"),
        (("--gpu", "t4", "--model", "made.gguf"), "not in the catalogue of simulated models; give a folder"),
        (("--gpu", "t4", "--model", "./none"), "--model './none': the folder has no config.json; give a"),
        (("--gpu", "t4", "--model", "A/B"), "--model 'A/B': this model is not in the catalogue of"),
        (
            ("--engine", "other"),
            "--engine 'other': this engine has no space of its own; give one of vllm, llama.cpp, sglang, tensorrt-",
        ),
        (("--engine", "simulated", "--gpu", "cpu"), "--gpu 'cpu': this is no GPU, and only GPUs are simulated"),
        (("--engine", "simulated", "--space", "sglang"), "--space 'sglang': this space has the flags of sglang"),
        (("--engine", "openai"), "the flags of a command are in no space that is shipped; give --space FILE"),
        (("--engine", "openai", "--space", "cpu"), "this space has the flags of vllm"),
    ],
)
def test_a_space_that_is_not_the_engines_is_not_shown(folder: Path, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(folder, "space", *argv), folder, message)


EXPERTS = {**CONFIG, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@pytest.mark.parametrize(
    ("engine", "version"),
    [("vllm", "vLLM of any version"), ("sglang", "SGLang of any version"), ("simulated", "simulated vLLM 0.25.1")],
)
@pytest.mark.parametrize("name", ["dense", "experts", "Qwen/Qwen2.5-7B-Instruct"])
def test_the_space_of_the_user_s_model_is_shown(
    folder: Path, tmp_path: Path, engine: str, version: str, name: str
) -> None:
    config = {"dense": CONFIG, "experts": EXPERTS}.get(name)
    model = name if config is None else str(tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    argv = ("--engine", engine, "--gpu", "h200", "--gpus-per-trial", "2", "--model", model)
    shown = run_here(folder, "space", *argv)
    assert shown.code == 0
    assert f"on NVIDIA H200 for {model}, {version}" in " ".join(shown.out.split())
    if engine == "vllm":
        assert "attention_backend = FLASH_ATTN_MLA," in shown.out
        assert shown.out.count("as far as is known") == 2  # of kernels, and of a format of the KV cache
    document = json.loads(run_here(folder, "space", *argv, "--json").out)
    assert "tensor_parallel_size" in {each["name"] for each in document["parameters"]}
    dropped = {(each["parameter"], each["value"]): each["reason"] for each in document["dropped"]}
    if engine == "vllm":
        dense = "the model has no experts, and vLLM refuses the flag"
        assert dropped.get(("expert_parallel", None)) == (None if name == "experts" else dense)
    if engine == "simulated":
        assert dropped["flashinfer_sampler", 1] == "they are on by default in vLLM 0.25.1"


def test_doctor_names_the_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, program = str(folder.parent / "sglang"), str(folder.parent / "bin" / "trtllm-serve")
    monkeypatch.setenv("TUNER_SGLANG", python)
    monkeypatch.setenv("TUNER_TRTLLM_SERVE", program)
    serve = folder / "serve"
    serve.write_text("#!/bin/sh\necho serve 4.5.6\n")
    serve.chmod(0o755)
    facts = json.loads(run_here(folder, "doctor", "--json").out)
    assert (facts["sglang"], facts["sglang_version"], facts["sglang_problem"]) == (python, "0.5.23", None)
    found = (facts["trtllm_serve"], facts["tensorrt_llm_version"], facts["tensorrt_llm_problem"])
    assert found == (program, VERSION, None)
    shown = run_here(folder, "doctor", "--server-command", "./serve {port}")
    assert str(serve) in shown.out
    assert "4.5.6" in shown.out
    missing = run_here(folder, "doctor", "--server-command", "./none {port}")
    assert (missing.code, missing.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("engine", NAMES)
def test_a_service_refuses_the_engine(engine: str) -> None:
    rule = f"a service runs vLLM and simulations, and {engine} only `tuner optimize`"
    with pytest.raises(SettingError, match=rule) as caught:
        check_plan(StudySettings(engine=engine, model="m"), {}, "cpu", simulated=False)
    assert caught.value.field == "engine"
