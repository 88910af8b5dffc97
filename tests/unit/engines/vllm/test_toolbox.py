"""Checks by vLLM's own parser and configuration, through the helper or as plain commands."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from records.trials import FailureKind, Phase
from tests.unit.engines.vllm.conftest import MadeVllm
from tuner.engines.server.python_engine import PythonInstallation
from tuner.engines.server.traffic import PlainJob
from tuner.engines.vllm import toolbox
from tuner.engines.vllm.resident_client import ResidentJob
from tuner.engines.vllm.toolbox import PACKAGE, Toolbox, installation
from tuner.errors import TrialFailed
from tuner.use_cases.tiny_model import make_tokenizer

SOON = 20.0


@pytest.fixture
def tools(made_vllm: MadeVllm, tmp_path: Path) -> Iterator[Toolbox]:
    home = tmp_path / "home"
    box = Toolbox(installation(made_vllm.executable, home), home, made_vllm.environment)
    yield box
    box.close()
    assert list((home / "vllm" / "resident").iterdir()) == []


def _wrapper(made: MadeVllm) -> PythonInstallation:
    """Return the installation as if its Python were not known."""
    return PythonInstallation(PACKAGE, made.executable, None, "1.2.3", None)


def ask(
    tools: Toolbox, made: MadeVllm, tmp_path: Path, *words: str, **variables: str
) -> tuple[FailureKind, str] | None:
    failure = tools.configuration_problem(
        ["serve", "m", *words], {**made.environment, **variables}, tmp_path / "check.log"
    )
    if failure is None:
        return None
    assert failure.phase is Phase.CHECK
    return failure.kind, failure.message


def test_a_good_configuration_passes(tools: Toolbox, made_vllm: MadeVllm, tmp_path: Path) -> None:
    """The made vLLM fails if its model is inspected in a new process."""
    assert ask(tools, made_vllm, tmp_path, "--max-num-seqs", "8") is None


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--swap-space", "4"], FailureKind.INVALID_CONFIGURATION, "unrecognized arguments: --swap-space 4"),
        (["--dtype", "x"], FailureKind.INVALID_CONFIGURATION, "argument --dtype: invalid choice: 'x'"),
        (["--max-num-seqs", "13"], FailureKind.INVALID_CONFIGURATION, "ValueError: 13 is not supported"),
        (["--max-num-seqs", "15"], FailureKind.DISK_FULL, "no space left on disk"),
    ],
)
def test_a_refusal_of_vllm_is_typed(
    tools: Toolbox, made_vllm: MadeVllm, tmp_path: Path, words: list[str], kind: FailureKind, message: str
) -> None:
    finding = ask(tools, made_vllm, tmp_path, *words)
    assert finding is not None
    assert finding[0] is kind
    assert finding[1].startswith(message)


def test_an_unrecognised_error_does_not_fail_the_check(tools: Toolbox, made_vllm: MadeVllm, tmp_path: Path) -> None:
    assert ask(tools, made_vllm, tmp_path, "--max-num-seqs", "14") is None
    assert "an odd state of affairs" in (tmp_path / "check.log").read_text()


def test_a_check_that_does_not_end_has_no_result(
    tools: Toolbox, made_vllm: MadeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tools.resident is not None
    monkeypatch.setattr(toolbox, "CHECK_S", 0.2)
    assert ask(tools, made_vllm, tmp_path, SLOW="1") is None
    monkeypatch.undo()
    assert ask(tools, made_vllm, tmp_path, "--max-num-seqs", "13") is not None


def test_flags_are_read_once_for_a_version(made_vllm: MadeVllm, tmp_path: Path) -> None:
    home = tmp_path / "home"
    found = installation(made_vllm.executable, home)
    first = Toolbox(found, home, made_vllm.environment)
    flags = first.flags()
    first.close()
    assert flags is not None
    assert "--max-num-seqs" in flags.names
    second = Toolbox(
        PythonInstallation(PACKAGE, found.executable, None, found.version, None), home, made_vllm.environment
    )
    assert second.flags() == flags
    second.close()


def test_commands_run_in_the_helper(tools: Toolbox, made_vllm: MadeVllm, tmp_path: Path) -> None:
    job = tools.start(["exit", "7"], made_vllm.environment, tmp_path / "log", tmp_path)
    assert isinstance(job, ResidentJob)
    assert job.wait(SOON)
    assert job.exit_code == 7


def test_without_an_interpreter_the_command_itself_runs(made_vllm: MadeVllm, tmp_path: Path) -> None:
    plain = Toolbox(_wrapper(made_vllm), tmp_path / "home", made_vllm.environment)
    assert plain.flags() is None
    assert ask(plain, made_vllm, tmp_path, "--nonsense") is None
    job = plain.start(["exit", "7"], made_vllm.environment, tmp_path / "log", tmp_path)
    assert isinstance(job, PlainJob)
    assert job.wait(SOON)
    assert job.exit_code == 7
    plain.close()


def test_without_an_interpreter_the_package_tokenizers_makes_the_prompts(made_vllm: MadeVllm, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_tokenizer(tmp_path / "model")
    plain = Toolbox(_wrapper(made_vllm), tmp_path / "home", made_vllm.environment)
    plan = tmp_path / "plan.json"
    request = {"shared": [], "tokens": 7, "seed": 3, "text": "random"}
    plan.write_text(json.dumps({"tokenizer": str(tmp_path / "model"), "requests": [request]}))
    [(text, tokens, answer)] = plain.prompts(plan, tmp_path / "log")
    assert text
    assert (tokens, answer) == (7, None)
    plan.write_text(json.dumps({"tokenizer": str(tmp_path), "requests": [request]}))
    with pytest.raises(TrialFailed, match=r"cannot make the prompts: .* there is no tokenizer\.json"):
        plain.prompts(plan, tmp_path / "log")
    plain.close()


def test_prompts_are_made_once_for_each_plan(
    made_vllm: MadeVllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokenizer(tmp_path)
    plain = Toolbox(_wrapper(made_vllm), tmp_path / "home", made_vllm.environment)
    plan = tmp_path / "plan.json"

    def prompts_of(seed: int) -> list[tuple[str, int, int | None]]:
        request = {"shared": [], "tokens": 7, "seed": seed, "text": "random"}
        plan.write_text(json.dumps({"tokenizer": str(tmp_path), "requests": [request]}))
        return plain.prompts(plan, tmp_path / "log")

    monkeypatch.setattr(toolbox, "KEPT_TOKENS", 14)  # two plans of 7 tokens
    first, second = prompts_of(1), prompts_of(2)
    (tmp_path / "tokenizer.json").unlink()  # no further prompt can be made
    assert prompts_of(2) == second
    assert prompts_of(1) == first
    assert first != second
    make_tokenizer(tmp_path)
    prompts_of(3)
    (tmp_path / "tokenizer.json").unlink()
    assert prompts_of(1) == first
    with pytest.raises(TrialFailed, match=r"there is no tokenizer\.json"):
        prompts_of(2)  # the one that was used longest ago was forgotten
    plain.close()


def test_a_helper_that_does_not_start_is_replaced_by_the_command(
    made_vllm: MadeVllm, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (made_vllm.folder / "vllm" / "__init__.py").write_text("raise OSError('broken')\n")
    home = tmp_path / "home"
    box = Toolbox(installation(made_vllm.executable, home), home, made_vllm.environment)
    assert box.flags() is None
    assert "plain commands are used" in caplog.text
    assert isinstance(box.start(["exit", "0"], made_vllm.environment, tmp_path / "log", tmp_path), PlainJob)
    box.close()
