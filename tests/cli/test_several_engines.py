"""Several engines in one study: a study of the fake vLLM and a real llama.cpp, and mistakes in its options."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import VERDICTS, CommandOutput, ran, refused, run_apart, run_here
from tests.fakes import WITHOUT_MLFLOW, install_fake_vllm
from tests.gguf_model import write_model
from tests.two_formats import write_both

TRIALS = 5
ENGINES = ("vllm", "llama.cpp")
LOAD = ("--users", "4", "--prompts", "8", "--input-len", "24", "--output-len", "8")
SPACE = ("--space", "cpu", "--only", "max_num_seqs", "--only", "parallel", "--only", "batch_size")
BOTH = ("--engine", "vllm", "--engine", "llama.cpp")
MODELS = ("--model", "GGUF", "--model", "FOLDER")
ROUNDS = ("--finalists", "1", "--confirm-rounds", "1", "--baseline-repeats", "1", "--no-reduce")


@dataclass(frozen=True)
class Study:
    """A study that has ended, with what it printed and its trials."""

    folder: Path
    variables: dict[str, str]
    done: CommandOutput
    trials: list[dict[str, Any]]

    def verified(self, engine: str) -> str:
        """Start and verify the script of the first trial of an engine; return what it printed."""
        number = ENGINES.index(engine)
        script = self.folder / f"{number}.sh"
        ran(self.folder, "study", "export", "--trial", str(number), "-o", str(script))
        variables = {**os.environ, **self.variables, "TUNER": str(Path(sys.executable).with_name("tuner"))}
        done = subprocess.run([script, "--verify"], capture_output=True, text=True, env=variables, check=False)
        assert done.returncode in VERDICTS, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("study")
    gguf, model = write_both(folder)
    variables = {"TUNER_HOME": str(folder / "home")}
    models = ("--vllm", str(install_fake_vllm(folder / "bin")), "--model", str(gguf), "--model", str(model))
    flags = ("--", "llama.cpp=", "--threads", "1")
    words = (*BOTH, *models, "--trials", str(TRIALS), *LOAD, *SPACE, *ROUNDS, "--plain", *flags)
    done = run_apart(folder, "optimize", *words, **variables, **WITHOUT_MLFLOW)
    assert done.code == 0, done.out + done.err
    return Study(folder, variables, done, json.loads(run_here(folder, "study", "trials", "--json").out))


@pytest.mark.slow
def test_the_defaults_of_both_engines_are_the_first_trials(study: Study) -> None:
    searched = [trial for trial in study.trials if not trial["round"]]
    assert [trial["state"] for trial in searched] == ["ok"] * TRIALS
    assert {trial["success_rate"] for trial in study.trials} == {1.0}
    assert [trial["config.engine"] or "vllm" for trial in searched[:2]] == list(ENGINES)


@pytest.mark.slow
def test_the_result_ranks_both_engines(study: Study) -> None:
    text = study.done.out
    table = text.partition("engines, each by its best measured configuration\n")[2].partition("\n\n")[0].splitlines()
    assert sorted(line.split()[0] for line in table[2:]) == sorted(ENGINES)
    report = next((study.folder / "tuner_study" / "artifacts").rglob("report.html")).read_text(encoding="utf-8")
    assert "Engines" in report


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_script_of_each_engine_sends_the_tokens_that_both_have(study: Study, engine: str) -> None:
    printed = study.verified(engine)
    assert "output_throughput: measured " in printed
    assert "SLO success_rate>=1: measured 1: holds\n" in printed
    text = (study.folder / f"{ENGINES.index(engine)}.sh").read_text(encoding="utf-8")
    assert text.count("--tokenizer ") == 2
    assert "Starts the vLLM server" in text if engine == "vllm" else "Starts the llama.cpp server" in text


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("gguf") / "made.gguf")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_fake_vllm(tmp_path_factory.mktemp("bin"))


def optimize(folder: Path, gguf: Path, model: Path, fake: Path, *argv: str) -> CommandOutput:
    """Run `tuner optimize` with the names GGUF and FOLDER replaced by the models."""
    words = [word.replace("GGUF", str(gguf)).replace("FOLDER", str(model)) for word in argv]
    return run_here(folder, "optimize", "--vllm", str(fake), *words)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--engine", "vllm"), "--engine 'vllm': this engine is given twice; give each engine once"),
        (
            ("--engine", "openai"),
            "--engine 'openai': a study of several engines measures vllm, llama.cpp, sglang; leave it out, or give it",
        ),
        (("--engine", "none"), "--engine 'none': no engine has this name; engines: auto, vllm, llama.cpp, openai,"),
    ],
)
def test_a_second_engine_that_cannot_be_ranked(
    tmp_path: Path, gguf: Path, model: Path, fake: Path, argv: tuple[str, ...], message: str
) -> None:
    refused(optimize(tmp_path, gguf, model, fake, "--engine", "vllm", *argv), tmp_path, message)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "tuner: llama.cpp serves a GGUF file, and none is given; add --model llama.cpp=MODEL"),
        (("--model", "GGUF"), "vllm serves a folder or a hub name, and none is given; add --model vllm=MODEL"),
        (("--model", "FOLDER"), "llama.cpp serves a GGUF file, and none is given; add --model llama.cpp=MODEL"),
        (
            ("--model", "sglang=GGUF"),
            "this study runs vllm and llama.cpp, not sglang; add --engine sglang, or leave it out",
        ),
        ((*MODELS, "--model", "b"), "--model 'b': vllm serves one model, and two are given; leave one out"),
        ((*MODELS, "--space", "sglang=cpu"), "--space 'sglang=cpu': this study runs vllm and llama.cpp, not sglang;"),
        ((*MODELS, "--space", "cpu", "--space", "cpu"), "--space 'cpu': vllm has one space, and two are given;"),
        ((*MODELS, "--enqueue", "sglang=x"), "--enqueue 'sglang=x': this study runs vllm and llama.cpp, not sglang;"),
        (
            (*MODELS, "--space", "cpu", "--only", "max_num_seqs"),
            "--only 'max_num_seqs': none of these is a parameter of llama.cpp; name one of llama.cpp, such as ",
        ),
        ((*MODELS, "--ray-address", "h:1"), "--ray-address 'h:1': a study of several engines runs on this machine"),
        ((*MODELS, "--", "none=", "--threads", "1"), "'none=' is not an option of `tuner optimize`; flags of"),
    ],
)
@pytest.mark.program("libgomp1")
def test_a_mistake_is_one_line(
    tmp_path: Path, gguf: Path, model: Path, fake: Path, argv: tuple[str, ...], message: str
) -> None:
    refused(optimize(tmp_path, gguf, model, fake, *BOTH, *argv), tmp_path, message)
