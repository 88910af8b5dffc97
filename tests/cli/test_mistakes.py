"""Mistakes of users, in one line each with the exit code 2."""

import json
import shlex
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import OperationalError

from tests.cli.command import CommandOutput, everything_in, one_line, ran, refused, run_here
from tests.fakes import install_fake_vllm
from tests.fakes.stub_engine import StubEngine
from tests.gguf_model import write_model
from tests.model_configs import TINY_QWEN, write_folder
from tests.tensorrt_llm_program import VERSION, write_program
from tuner.engines.base import EngineInfo
from tuner.errors import SettingError
from tuner.executors.base import InlineExecutor
from tuner.service.asked.check import check_plan
from tuner.settings.study import StudySettings
from tuner.use_cases import optimize as optimize_run

Optimize = Callable[..., CommandOutput]
FLAGS = frozenset({"--max-model-len", "--load-format", "--compilation-config", "--enable-prefix-caching"})


class KnownFlags(StubEngine):
    """An engine with a list of flags that measures nothing."""

    def info(self) -> EngineInfo:
        return replace(super().info(), flags=FLAGS)


@pytest.fixture
def optimize(folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Optimize:
    """`tuner optimize` with a model, a fake vLLM and an executor that must not run a trial."""
    vllm = install_fake_vllm(tmp_path / "bin")
    monkeypatch.setattr(optimize_run, "_executor", lambda *_: InlineExecutor(lambda _: KnownFlags(lambda *_: {})))

    def run(*argv: str) -> CommandOutput:
        load = ["--users", "10", "--prompts", "20", "--input-len", "64", "--output-len", "32"]
        return run_here(folder, "optimize", "--vllm", str(vllm), "--model", str(model), *load, *argv)

    return run


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--preset", "nope"], ["--preset 'nope'", "presets: chat, code, conversations, "]),
        (["--trails", "3"], ["there is no option --trails; did you mean --trials?"]),
        (["--zzz"], ["there is no option --zzz; see `tuner optimize --help-all`"]),
        (["--max-num-seqs", "4"], ["--max-num-seqs is a flag of `vllm serve`; write it after `--`"]),
        (["stray"], ["'stray' is not an option of `tuner optimize`", "flags of `vllm serve` follow `--`"]),
        (["--slo", "p99_speed<3"], ["--slo 'p99_speed<3'", "no metric is called 'p99_speed'", "did you mean"]),
        (["--slo", "fast"], ["--slo 'fast'", "METRIC<VALUE", "for example 'p99_tpot_ms<50'"]),
        (["--objective", "speed"], ["--objective 'speed'", "no metric is called", "metrics: output_"]),
        (["--objective", "output_throughput:x"], ["weight must be a number above 0", "'output_throughput:40'"]),
        (["--space", "nope"], ["no search space is called 'nope'", "cpu, faults-cpu"]),
        (["--trials", "0"], ["--trials 0", "at least 1 is needed"]),
        (["--trials", "many"], ["--trials 'many': not a whole number; see `tuner optimize --help-all`"]),
        (["--timeout", "soon"], ["--timeout 'soon': not a duration", "2h"]),
        (["--timeout", "0"], ["--timeout '0': a duration is longer than 0", "2h"]),
        (["--storage", "nowhere/x.db"], ["--storage 'nowhere/x.db'", "there is no folder", "make it first"]),
        (["--storage", "nosql://x"], ["nosql is not a supported database", "use SQLite"]),
        (["--storage", ""], ["the storage is empty", "give a file"]),
        (["--storage", "postgresql://127.0.0.1:1/x"], ["127.0.0.1:1/x", "onnection refused", "check host, port"]),
        (["--model", "./nowhere"], ["--model './nowhere'", "no config.json", "give a model folder"]),
        (["--model", "nobody/nothing"], ["--model 'nobody/nothing'", "HF_HUB_OFFLINE is set", "download it"]),
        (["--model", "~no-such-user/model"], ["--model '~no-such-user/model'", "the folder has no config.json"]),
        (["--space", "vllm", "--draft-model", "./d"], ["--draft-model './d'", "the folder has no config.json"]),
        (["--draft-model", "./d"], ["--draft-model './d'", "no parameter of space 'cpu' takes a draft model"]),
        (
            ["--space", "vllm", "--checkpoint", "awq=nobody/awq"],
            ["--checkpoint 'nobody/awq'", "HF_HUB_OFFLINE is set", "download it"],
        ),
        (["--model", ""], ["--model ''", "give a model folder or a hub name"]),
        (["--vllm", "/nowhere/vllm"], ["--vllm '/nowhere/vllm': there is no such file", "VENV/bin/vllm"]),
        (["--workers", "0"], ["--workers '0'", "at least 1"]),
        (["--users", "0"], ["--users 0", "greater than or equal to 1"]),
        (["--input-len", "5000"], ["5000 + 32 tokens", "context of 4096", "lower --input-len"]),
        (["--env", "X"], ["--env 'X'", "the form is NAME=VALUE"]),
        (["--checkpoint", "fp8"], ["--checkpoint 'fp8': the form is METHOD=MODEL"]),
        (["--env", "A=1", "--env", "A=2"], ["--env 'A=2'", "A is given twice"]),
        (["--engine", "other"], ["--engine 'other'", "engines: auto, vllm"]),
        (["--study", "../elsewhere"], ["--study '../elsewhere'", "no slash", "choose another"]),
        (["-o", "nowhere/best.sh"], ["-o 'nowhere/best.sh'", "there is no folder", "a folder that exists"]),
        (["-o", "."], ["-o '.'", "this is a folder"]),
        (["--", "--port", "1"], ["server argument '--port': the tuner sets this flag", "leave it out"]),
        (["--only", "max_seqs"], ["--only 'max_seqs'", "did you mean max_num_seqs?"]),
        (["--enqueue", "nonsense"], ["--enqueue 'nonsense'", "known:"]),
        (["--enqueue", '{"max_seqs": 3}'], ["--enqueue", "max_seqs"]),
        (["--enqueue", '{"max_num'], ["--enqueue '{\"max_num'", "not valid JSON"]),
    ],
)
def test_found_before_anything_starts(
    optimize: Optimize, folder: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], parts: list[str]
) -> None:
    def never(*_: object) -> InlineExecutor:
        raise AssertionError("an executor was started")

    monkeypatch.setattr(optimize_run, "_executor", never)
    refused(optimize(*argv), folder, *parts)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (
            ["--", "--load-fromat", "dummy"],
            ["'--load-fromat': this flag is not simulated", "did you mean --load-format?"],
        ),
        (["--", "--zz"], ["'--zz': this flag is not simulated", "measure it with --engine vllm"]),
        (["--storage", "sqlite://"], ["a database in memory is lost", "give a file"]),
    ],
)
def test_found_before_anything_is_written(optimize: Optimize, folder: Path, argv: list[str], parts: list[str]) -> None:
    refused(optimize(*argv), folder, *parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("description: d\nparameters:\n  a: {description: d, type: int, low: 1\n  b: [", [":4: not valid YAML"]),
        (
            "description: d\nparameters:\n  a: {description: d, type: int, low: 9, high: 3, flag: --max-num-seqs}\n",
            [":3: parameters.a: low 9 is above high 3"],
        ),
    ],
)
def test_a_wrong_space_is_named_by_file_and_line(
    optimize: Optimize, folder: Path, tmp_path: Path, text: str, parts: list[str]
) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(text)
    refused(optimize("--space", str(file)), folder, *(f"{file}{part}" for part in parts))


def test_without_a_vllm_the_message_has_the_installation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    printed = run_here(folder, "optimize", "--trials", "60", "--engine", "vllm")
    refused(printed, folder, "no vLLM found", "pip install vllm", "on PATH, or its path into TUNER_VLLM")


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["study", "trials"], ["no database at tuner_study/tuner.db", "tuner optimize", "--storage"]),
        (["study", "show"], ["no database at tuner_study/tuner.db"]),
        (["study", "trial", "99"], ["no database at tuner_study/tuner.db"]),
        (["study", "export"], ["no database at tuner_study/tuner.db"]),
        (["study", "sync"], ["no database at tuner_study/tuner.db"]),
        (["study", "ui"], ["no database at tuner_study/tuner.db"]),
        (["study", "trials", "--json", "--csv"], ["--json and --csv exclude each other"]),
        (["study", "trial"], ["missing argument 'TRIAL'", "tuner study trial --help"]),
        (["optimize", "--seed"], ["--seed needs a value", "tuner optimize --help-all"]),
        (
            ["study", "trial", "x"],
            ["'x' names no trial; give its number, or STUDY#12", "`tuner study trials` lists trials"],
        ),
        (["study", "trial", "12", "mine"], ["one trial is shown", "`tuner study trial STUDY#12`"]),
        (["study", "show", "--study", "x"], ["no option --study", "an argument: `tuner study show STUDY`"]),
        (["study", "trials", "--study", "x"], ["no option --study", "an argument: `tuner study trials STUDY`"]),
        (["study", "trial", "1", "--study", "x"], ["no option --study", "`tuner study trial STUDY#12`"]),
        (["study", "compare", "0", "--study", "x"], ["no option --study", "`tuner study compare STUDY#12 STUDY#15`"]),
        (["doctor", "--study", "x"], ["there is no option --study; see `tuner doctor --help`"]),
        (["study", "space", "--gpu", "nope"], ["no known hardware is called 'nope'", "known: t4"]),
        (["study", "space", "--space", "nope"], ["no search space is called 'nope'"]),
        (["study", "space", "--vllm-version", "x"], ["'x' is not a version", "0.32.0"]),
        (["study", "ui", "--port", "0"], ["--port '0': at least 1 is needed; see `tuner study ui --help`"]),
        (["optimise"], ["there is no command 'optimise'; did you mean `tuner optimize`?"]),
    ],
)
def test_other_commands(folder: Path, argv: list[str], parts: list[str]) -> None:
    refused(run_here(folder, *argv), folder, *parts)


def test_debug_shows_the_traceback_and_the_default_does_not(
    optimize: Optimize, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> InlineExecutor:
        raise RuntimeError("boom")

    monkeypatch.setattr(optimize_run, "_executor", break_down)
    printed = optimize()
    assert printed.code == 1
    assert printed.err == "tuner: internal error: RuntimeError: boom (run with `tuner --debug …` for the traceback)\n"
    vllm, model = folder.parent / "bin" / "vllm", folder.parent / "model"
    write_folder(model, {})
    printed = run_here(folder, "--debug", "optimize", "--vllm", str(vllm), "--model", str(model))
    assert printed.code == 1
    assert printed.err.startswith("Traceback (most recent call last):")
    assert "in break_down" in printed.err


def test_a_model_without_weights_is_refused_before_its_first_server(optimize: Optimize, folder: Path) -> None:
    assert optimize("--trials", "0").code == 2  # makes the fake vLLM
    vllm, model = folder.parent / "bin" / "vllm", write_folder(folder.parent / "model", TINY_QWEN)
    (model / "model.safetensors").unlink()
    printed = run_here(folder, "optimize", "--vllm", str(vllm), "--model", str(model))
    assert printed.code == 2
    assert f"--model '{model}': the folder has no weights, such as *.safetensors; download the model" in printed.err


def test_a_database_error_that_optuna_wraps_is_one_line_with_its_reason(
    optimize: Optimize, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_the_database(*_: object) -> InlineExecutor:
        cause = OperationalError("INSERT", {}, sqlite3.OperationalError("disk I/O error"))
        raise StorageInternalError("An exception is raised during the commit. … exceeding max length. ") from cause

    monkeypatch.setattr(optimize_run, "_executor", lose_the_database)
    printed = optimize()
    assert printed.code == 1
    assert printed.err == (
        "tuner: the database failed: disk I/O error; check that it runs and has space, "
        "then run the same command again\n"
    )


SITE = Path(__file__).parents[1] / "fakes" / "sglang_site"
CONFIG = {**TINY_QWEN, "num_key_value_heads": 2}
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
    write_folder(folder / "model", CONFIG)
    write_program(folder / "bin")
    words = shlex.join(["exec", "env", f"PYTHONPATH={SITE}", sys.executable])
    (folder / "sglang").write_text(f'#!/bin/sh\n{words} "$@"\n', encoding="utf-8")
    (folder / "sglang").chmod(0o755)
    return folder


@pytest.fixture
def made_folder(made: Path, tmp_path: Path) -> Path:
    """An empty folder to run in, below one with links to what was made."""
    for each in made.iterdir():
        (tmp_path / each.name).symlink_to(each)
    here = tmp_path / "here"
    here.mkdir()
    return here


def complete(engine: str, made_folder: Path, argv: tuple[str, ...]) -> list[str]:
    """Return a command that is right but for `argv`, which may name the model and the program itself."""
    given = {
        "llama.cpp": {"--model": "made.gguf"},
        "sglang": {"--model": "model", "--sglang": "sglang"},
        "tensorrt-llm": {"--model": "model", "--trtllm-serve": "bin/trtllm-serve"},
        "openai": {},
    }[engine]
    words = [
        word for name, path in given.items() if name not in argv for word in (name, str(made_folder.parent / path))
    ]
    files = {"my.yaml", "of_vllm.yaml", "made.gguf", "text.gguf"}
    own = [str(made_folder.parent / word) if word in files else word for word in argv]
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
def test_what_is_for_vllm_only_is_refused(made_folder: Path, engine: str, argv: tuple[str, ...], message: str) -> None:
    start = COMPLETE if engine == "openai" and argv[0] != "--space" else COMMAND if engine == "openai" else ()
    printed = run_here(made_folder, *complete(engine, made_folder, (*start, *argv)))
    refused(printed, made_folder, message.format(engine=engine, name=NAMES[engine]))


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
def test_mistakes_with_llama_cpp(made_folder: Path, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(made_folder, *complete("llama.cpp", made_folder, argv)), made_folder, message)


@pytest.mark.program("libgomp1")
def test_llama_cpp_needs_a_model(made_folder: Path) -> None:
    message = "llama.cpp serves a GGUF file, and none is given; give a GGUF file by --model FILE"
    refused(run_here(made_folder, "optimize", "--engine", "llama.cpp"), made_folder, message)


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
def test_mistakes_with_sglang(made_folder: Path, without_ray: None, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(made_folder, *complete("sglang", made_folder, argv)), made_folder, message)


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
def test_mistakes_with_tensorrt_llm(made_folder: Path, without_ray: None, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(made_folder, *complete("tensorrt-llm", made_folder, argv)), made_folder, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "this engine starts a command, and none is given; give --server-command 'PROGRAM ARGUMENTS', with {port}"),
        (("--server-command", "no-such --port {port}"), "--server-command 'no-such': there is no such program; name a"),
        (COMMAND, "no space that is shipped has them; give --space FILE.yaml, with the line 'engine: openai'"),
        ((*COMMAND, "--space", "of_vllm.yaml"), "the study runs openai; write 'engine: openai' into it"),
        ((*COMMAND, "--space", "my.yaml"), "give the name that /v1/models lists by --model NAME"),
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
def test_mistakes_with_a_command(made_folder: Path, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(made_folder, *complete("openai", made_folder, argv)), made_folder, message)


@pytest.mark.parametrize("engine", NAMES)
def test_another_engine_refuses_the_space_and_the_program(made_folder: Path, engine: str) -> None:
    simulated = ("optimize", "--engine", "simulated", "--trials", "1")
    program = COMMAND if engine == "openai" else (PROGRAMS[engine], "/bin/true")
    rule = f"this setting is for {NAMES[engine]}, and this study runs vLLM; add --engine {engine}"
    refused(run_here(made_folder, *simulated, *program), made_folder, rule)
    if engine != "openai":
        rule = f"--space '{engine}': this space has the flags of {engine}, and the study runs vllm"
        refused(run_here(made_folder, *simulated, "--space", engine), made_folder, rule)


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
def test_the_space_of_an_engine_is_shown(made_folder: Path, argv: tuple[str, ...], title: str, parameter: str) -> None:
    words = [str(made_folder.parent / word) if word in ("my.yaml", "made.gguf") else word for word in argv]
    shown = ran(made_folder, "study", "space", "--engine", *words)
    heading = title.replace("{made.gguf}", str(made_folder.parent / "made.gguf"))
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
def test_a_space_that_is_not_the_engines_is_not_shown(made_folder: Path, argv: tuple[str, ...], message: str) -> None:
    refused(run_here(made_folder, "study", "space", *argv), made_folder, message)


EXPERTS = {**CONFIG, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@pytest.mark.parametrize(
    ("engine", "version"),
    [("vllm", "vLLM of any version"), ("sglang", "SGLang of any version"), ("simulated", "simulated vLLM 0.25.1")],
)
@pytest.mark.parametrize("name", ["dense", "experts", "Qwen/Qwen2.5-7B-Instruct"])
def test_the_space_of_the_user_s_model_is_shown(
    made_folder: Path, tmp_path: Path, engine: str, version: str, name: str
) -> None:
    config = {"dense": CONFIG, "experts": EXPERTS}.get(name)
    model = name if config is None else str(tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    argv = ("--engine", engine, "--gpu", "h200", "--gpus-per-trial", "2", "--model", model)
    shown = ran(made_folder, "study", "space", *argv)
    assert f"on NVIDIA H200 for {model}, {version}" in " ".join(shown.out.split())
    if engine == "vllm":
        assert "attention_backend = FLASH_ATTN_MLA," in shown.out
        assert shown.out.count("as far as is known") == 2  # of kernels, and of a format of the KV cache
    document = json.loads(run_here(made_folder, "study", "space", *argv, "--json").out)
    assert "tensor_parallel_size" in {each["name"] for each in document["parameters"]}
    dropped = {(each["parameter"], each["value"]): each["reason"] for each in document["dropped"]}
    if engine == "vllm":
        dense = "the model has no experts, and vLLM refuses the flag"
        assert dropped.get(("expert_parallel", None)) == (None if name == "experts" else dense)
    if engine == "simulated":
        assert dropped["flashinfer_sampler", 1] == "they are on by default in vLLM 0.25.1"


def test_doctor_names_the_programs(made_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python, program = str(made_folder.parent / "sglang"), str(made_folder.parent / "bin" / "trtllm-serve")
    monkeypatch.setenv("TUNER_SGLANG", python)
    monkeypatch.setenv("TUNER_TRTLLM_SERVE", program)
    serve = made_folder / "serve"
    serve.write_text("#!/bin/sh\necho serve 4.5.6\n")
    serve.chmod(0o755)
    facts = json.loads(run_here(made_folder, "doctor", "--json").out)
    assert (facts["sglang"], facts["sglang_version"], facts["sglang_problem"]) == (python, "0.5.23", None)
    found = (facts["trtllm_serve"], facts["tensorrt_llm_version"], facts["tensorrt_llm_problem"])
    assert found == (program, VERSION, None)
    shown = run_here(made_folder, "doctor", "--server-command", "./serve {port}")
    words = "".join(shown.out.split())  # a long path is broken over lines
    assert str(serve) in words
    assert "4.5.6" in words
    missing = run_here(made_folder, "doctor", "--server-command", "./none {port}")
    assert (missing.code, missing.err.count("\n")) == (2, 1)


@pytest.mark.parametrize("engine", NAMES)
def test_a_service_refuses_the_engine(engine: str) -> None:
    rule = f"a service runs vLLM and simulations, and {engine} only `tuner optimize`"
    with pytest.raises(SettingError, match=rule) as caught:
        check_plan(StudySettings(engine=engine, model="m"), {}, "cpu", simulated=False)
    assert caught.value.field == "engine"


OPTIMIZE = ("optimize", "--engine", "simulated", "--trials", "2", "--slo", "quality>=0.99")
QUESTION = '{"prompt": "2+2=", "answer": "4"}'


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        ('{"prompt": "2+2="}', ("line 1 has no answer", '{"prompt": "2+2=", "answer": "4"}')),
        (f"{QUESTION}\nno JSON", ("line 2",)),
        ("", ("'questions.jsonl'",)),
    ],
)
@pytest.mark.parametrize("command", [("quality",), OPTIMIZE])
def test_questions_that_cannot_be_asked_are_refused(
    tmp_path: Path, command: tuple[str, ...], lines: str, parts: tuple[str, ...]
) -> None:
    (tmp_path / "questions.jsonl").write_text(lines)
    _refused(tmp_path, (*command, "--quality-task", "questions.jsonl"), "--quality-task", *parts)


def test_an_slo_without_questions_is_refused(tmp_path: Path) -> None:
    _refused(tmp_path, OPTIMIZE, "quality needs questions", "--quality-task FILE")


def test_questions_that_no_slo_asks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(QUESTION)
    command = (*OPTIMIZE[:-2], "--quality-task", "questions.jsonl")
    _refused(tmp_path, command, "--quality-task 'questions.jsonl'", "add --slo 'quality>=0.99'")


def test_an_slo_where_no_reference_can_be_served_is_refused(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(QUESTION)
    _refused(tmp_path, (*OPTIMIZE, "--quality-task", "questions.jsonl"), "no reference can be served")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--trial", "3"), ("--trial", "needs a study", "--study NAME")),
        (("--study", "s", "--model", "m"), ("--study", "are those of the study", "--model")),
        (("--study", "s", "--secret", "X"), ("--study", "are those of the study", "--secret")),
        (("--study", "s", "--", "--seed", "3"), ("--study", "flags after --")),
        (("--study", "s"), ("--storage",)),
    ],
)
def test_a_candidate_is_a_trial_or_a_model(tmp_path: Path, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    _refused(tmp_path, ("quality", *words), *parts)


def _refused(folder: Path, command: tuple[str, ...], *parts: str) -> None:
    before = sorted(folder.iterdir())
    one_line(run_here(folder, *command), *parts)
    assert sorted(folder.iterdir()) == before


HEAD = "arrivals: {process: poisson, rate: 4}\nrequests: 10\n"
CLASS = "classes: {a: {input: 4, output: 4}}\n"


@pytest.mark.parametrize("command", ["optimize", "capacity"])
@pytest.mark.parametrize(
    ("text", "files", "parts"),
    [
        (
            HEAD + "classes: {a: {input: 90000, output: 4}}\nslo: {a: {p95_ttft_ms: 9}}\n",
            {},
            ("class 'a' has requests of up to 90004 tokens", "the model's context of", "lower its lengths"),
        ),
        (HEAD + "classes: {a: {text: {file: p.jsonl}, output: 4}}\n", {"p.jsonl": ""}, ("p.jsonl' is empty", "give")),
        (
            HEAD + "classes: {a: {text: {file: p.jsonl}, output: 4}}\n",
            {"p.jsonl": '{"prompt": "x"}\n{"prompt": \n'},
            ("p.jsonl:2: not JSON", "give lines such as"),
        ),
        (HEAD, {}, ("classes: this key is missing; add it, as docs/workloads.md shows",)),
    ],
)
def test_a_traffic_file_that_cannot_be_used(
    folder: Path, tmp_path: Path, model: Path, command: str, text: str, files: dict[str, str], parts: tuple[str, ...]
) -> None:
    for name, content in {**files, "traffic.yaml": text}.items():
        (tmp_path / name).write_text(content)
    vllm = install_fake_vllm(tmp_path / "bin")
    printed = run_here(
        folder, command, "--vllm", str(vllm), "--model", str(model), "--workload", str(tmp_path / "traffic.yaml")
    )
    refused(printed, folder, *parts)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["optimize", "--rate", "5"], "--rate 5: a closed loop has no rate"),
        (["optimize", "--objective", "capacity"], "--objective 'capacity': this metric needs traffic"),
        (
            ["capacity", "--preset", "system-prompt"],
            "--objective 'capacity': a capacity search needs one traffic file",
        ),
        (["capacity", "--preset", "nothing"], "--preset 'nothing': no preset has this name"),
        (["server", "load"], "exactly one of --workload, --preset and --study"),
        (["server", "load", "--preset", "qwen2.5-0.5b-t4"], "run `vllm bench serve` instead"),
        (
            ["server", "load", "--preset", "chat", "--url", "http://127.0.0.1:9"],
            "no OpenAI-compatible server answers there",
        ),
    ],
)
def test_an_option_that_does_not_fit(folder: Path, tmp_path: Path, model: Path, argv: list[str], part: str) -> None:
    vllm = install_fake_vllm(tmp_path / "bin")
    extra = [] if argv[0] == "load" else ["--model", str(model)]
    printed = run_here(folder, *argv, "--vllm", str(vllm), *extra)
    assert (printed.code, part in printed.err) == (2, True), printed.err
    assert len(printed.err.splitlines()) == 1
    assert everything_in(folder) == []
