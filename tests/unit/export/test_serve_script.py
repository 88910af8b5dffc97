import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from records.trials import Provenance
from tuner.export.quoting import PORT_PLACEHOLDER, RESULTS_PLACEHOLDER
from tuner.export.references import Reference
from tuner.export.render import render_serve_script, write_serve_script
from tuner.export.serve_script import ServeScript, without_trial_settings
from tuner.testing.exporter import NASTY, a_script

WORDS = st.one_of(st.sampled_from(NASTY), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
STUB = """#!/bin/sh
if [ "$1" = --version ]; then echo 0.32.0; exit; fi
printf '%s\\0' "$@" >"$RECORD/argv"
cat /proc/$$/environ >"$RECORD/env"
"""
QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def run(script: ServeScript, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    stub, path = folder / "stub", folder / "best_serve.sh"
    stub.write_text(STUB)
    stub.chmod(0o755)
    write_serve_script(script, path)
    inherited = {"PATH": os.environ["PATH"], "VLLM": str(stub), "RECORD": str(folder), "LANG": "C.UTF-8"}
    return subprocess.run(
        [path, *arguments], env=inherited | environment, cwd=folder, capture_output=True, text=True, timeout=60
    )


def started_with(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the argv and the environment that the stub saw."""
    argv = (folder / "argv").read_bytes().decode().split("\0")[:-1]
    pairs = (folder / "env").read_bytes().decode().split("\0")[:-1]
    return argv, {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


@QUICK
@given(model=WORDS, argv=st.lists(WORDS, max_size=4), value=WORDS, study=WORDS, extra=st.lists(WORDS, max_size=2))
def test_every_word_reaches_the_server_unchanged(
    tmp_path: Path, model: str, argv: list[str], value: str, study: str, extra: list[str]
) -> None:
    script = a_script(
        model=model, served_name=study, argv=tuple(argv), environment={"VLLM_X": value}, study=study, verdict=value,
        numbers=((study, value),), device=value, vllm_version="0.32.0",
    )  # fmt: skip
    name = [] if study == model else ["--served-model-name", study]
    expected = ["serve", model, *name, *argv, "--host", "127.0.0.1", "--port", "8000", *extra]
    if extra and extra[0] in ("--help", "-h", "--verify"):
        extra, expected = [], expected[: len(expected) - len(extra)]

    done = run(script, tmp_path, *extra)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    argv_seen, environment = started_with(tmp_path)
    assert argv_seen == expected
    assert environment["VLLM_X"] == value
    assert sorted(file.name for file in tmp_path.iterdir()) == ["argv", "best_serve.sh", "env", "stub"]


@pytest.mark.program("shellcheck")
@settings(QUICK, max_examples=6)
@given(words=st.lists(WORDS, min_size=4, max_size=8), simulated=st.booleans())
@example(words=["a=b", "a,b", "=", "two words"], simulated=False)
def test_clean_under_shellcheck(tmp_path: Path, words: list[str], simulated: bool) -> None:
    script = a_script(
        study=words[0], model=words[1], argv=tuple(words), environment={"VLLM_X": words[2]}, verdict=words[3],
        provenance=Provenance.SIMULATED if simulated else Provenance.MEASURED,
        bench_argv=("bench", *words, f"{words[0]}{PORT_PLACEHOLDER}{words[1]}"),
        warmup_argv=(*words, RESULTS_PLACEHOLDER), flag_effects=(words[0], words[3]),
    )  # fmt: skip
    path = tmp_path / "best_serve.sh"
    write_serve_script(script, path)
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, env={**os.environ, "LANG": "C.UTF-8"})
    assert (done.returncode, done.stdout) == (0, "")


def test_host_port_and_further_arguments_can_be_given(tmp_path: Path) -> None:
    done = run(a_script(), tmp_path, "--api-key", "a b", HOST="0.0.0.0", PORT="9000")
    assert done.returncode == 0
    assert started_with(tmp_path)[0] == [
        "serve", "org/model", "--max-num-seqs", "64", "--enforce-eager",
        "--host", "0.0.0.0", "--port", "9000", "--api-key", "a b",
    ]  # fmt: skip


def test_the_vllm_of_the_study_is_used_without_one_on_the_path(tmp_path: Path) -> None:
    own = tmp_path / "studys own" / "vllm"
    own.parent.mkdir()
    own.write_text(STUB)
    own.chmod(0o755)
    done = run(a_script(executable=str(own)), tmp_path, VLLM="", PATH="/usr/bin:/bin")
    assert (done.returncode, done.stderr) == (0, "")
    assert started_with(tmp_path)[0][:2] == ["serve", "org/model"]


NAMES = (
    *(
        "PORT",
        "HOST",
        "VLLM",
        "TUNER",
        "PYTHON",
        "server_words",
        "recorded_gpu",
        "port",
        "key",
        "work",
        "word",
        "name",
        "UID",
        "IFS",
    ),
    *("SECONDS", "RANDOM", "BASH_ENV", "SHELLOPTS", "PPID", "LANG", "LC_ALL", "a-b", "two words", "ünï", "1st", "env"),
)


@QUICK
@given(variables=st.dictionaries(st.sampled_from(NAMES), WORDS, max_size=6))
@example(variables=dict.fromkeys(NAMES, "$(touch pwned) it's \n"))
def test_every_variable_reaches_the_server_whatever_its_name(tmp_path: Path, variables: dict[str, str]) -> None:
    done = run(a_script(environment=variables), tmp_path, PORT="9000")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    argv, environment = started_with(tmp_path)
    assert argv[-4:] == ["--host", "127.0.0.1", "--port", "9000"]
    assert variables.items() <= environment.items()


def test_without_a_vllm_the_error_names_the_variable(tmp_path: Path) -> None:
    done = run(a_script(executable=str(tmp_path / "gone")), tmp_path, VLLM="", PATH="/usr/bin:/bin")
    assert done.returncode == 127
    assert done.stderr == "best_serve.sh: no executable vllm; set VLLM=/path/to/vllm (the study ran 0.32.0)\n"


def test_the_trials_own_settings_are_left_out(tmp_path: Path) -> None:
    script = a_script(
        argv=("--port", "1234", "--max-num-seqs", "8", "--host=127.0.0.9", "--disable-uvicorn-access-log"),
        environment={"VLLM_CACHE_ROOT": "/trial/cache", "VLLM_LOGGING_LEVEL": "DEBUG", "CUDA_VISIBLE_DEVICES": "3"},
    )
    run(script, tmp_path)
    argv, environment = started_with(tmp_path)
    assert argv == ["serve", "org/model", "--max-num-seqs", "8", "--host", "127.0.0.1", "--port", "8000"]
    assert not environment.keys() & {"VLLM_CACHE_ROOT", "VLLM_LOGGING_LEVEL", "CUDA_VISIBLE_DEVICES"}


def test_a_removed_flag_may_lack_its_value() -> None:
    assert without_trial_settings(["--a", "--port"]) == ("--a",)


def test_the_header_lists_the_measurements() -> None:
    lines = render_serve_script(a_script(study="a\nb")).splitlines()
    assert lines[:12] == [
        "#!/usr/bin/env bash",
        "# Starts the vLLM server of a tuner study. --help shows the usage, --verify measures the server again.",
        "#",
        "# study     a\\nb, trial 12",
        "# verdict   beats the defaults by 29 %",
        "# model     org/model",
        "# measured  output throughput: 4300 tok/s",
        "# SLO       p99_tpot_ms<50",
        "# vLLM      0.32.0 (/opt/vllm/bin/vllm)",
        "# GPU       Tesla T4",
        "# date      2026-11-20",
        "#",
    ]


def test_flag_effects_stay_a_comment(tmp_path: Path) -> None:
    script = a_script(flag_effects=("flag effects:", "max_num_seqs=64\n$(touch caught) : score ×1.20 [1.10, 1.30]"))
    lines = render_serve_script(script).splitlines()
    assert lines[lines.index("# SLO       p99_tpot_ms<50") + 1 :][:2] == [
        "# flags     flag effects:",
        "# flags     max_num_seqs=64\\n$(touch caught) : score ×1.20 [1.10, 1.30]",
    ]
    assert run(script, tmp_path).returncode == 0
    assert not (tmp_path / "caught").exists()


def test_a_simulated_result_is_marked_in_the_first_lines() -> None:
    lines = render_serve_script(a_script(provenance=Provenance.SIMULATED)).splitlines()
    assert lines[1].startswith("# Simulated, not measured")
    assert "# simulated output throughput: 4300 tok/s" in lines


def test_another_version_gives_a_warning(tmp_path: Path) -> None:
    done = run(a_script(vllm_version="0.25.1"), tmp_path)
    assert done.returncode == 0
    assert done.stderr == "best_serve.sh: warning: vLLM 0.32.0 is installed, the study ran 0.25.1\n"


def test_another_build_of_the_same_version_gives_no_warning(tmp_path: Path) -> None:
    assert run(a_script(vllm_version="0.32.0+cpu"), tmp_path).stderr == ""


def test_help_starts_nothing(tmp_path: Path) -> None:
    done = run(a_script(), tmp_path, "--help")
    assert done.returncode == 0
    assert "--verify" in done.stdout
    assert not (tmp_path / "argv").exists()


@pytest.mark.parametrize(("arguments", "code"), [((), 127), (("--verify",), 2)])
def test_a_missing_executable_gives_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    done = run(a_script(), tmp_path, *arguments, VLLM="no-such-vllm")
    assert done.returncode == code
    assert done.stderr == ("best_serve.sh: no executable no-such-vllm; set VLLM=/path/to/vllm (the study ran 0.32.0)\n")


def test_the_file_is_executable_and_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "best_serve.sh"
    path.write_text("old")
    write_serve_script(a_script(), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert path.read_text() == render_serve_script(a_script())
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"a=b": "x"}},
        {"environment": {"": "x"}},
        {"environment": {"X": "a\0b"}},
        {"model": "a\0b"},
        {"argv": ("\0",)},
    ],
)
def test_words_and_variables_that_a_script_cannot_hold_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"NUL|can be called"):
        a_script(**changes)


def test_the_interval_of_a_reference_contains_its_value() -> None:
    with pytest.raises(ValueError, match="low <= value <= high"):
        Reference(5.0, 6.0, 7.0)


def test_the_reference_is_json_in_the_script() -> None:
    text = render_serve_script(a_script(reference={"p99_tpot_ms": Reference(1.5, 1.0, 2.0)}))
    line = next(line for line in text.splitlines() if line.strip().startswith('"$1" - '))
    found = json.loads(line.split("'")[1])
    assert found["metrics"] == {"p99_tpot_ms": {"value": 1.5, "low": 1.0, "high": 2.0, "tells": True, "up": False}}
    assert found["slos"] == [["p99_tpot_ms", "<", 50.0]]


def test_the_script_is_written_through_a_fifo(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE, text=True) as reader:
        try:
            write_serve_script(a_script(), fifo)
            received, _ = reader.communicate(timeout=60)
        finally:
            reader.kill()
    assert received == render_serve_script(a_script())
    assert stat.S_ISFIFO(fifo.stat().st_mode)
