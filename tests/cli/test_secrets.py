"""Secrets of a study: an environment variable, a flag of the server and the database's password are found nowhere."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.cli.command import refused, run_here
from tests.fakes import install_fake_vllm
from tests.postgres import postgres_server

VARIABLE, FLAG, NAMED, PASSWORD = (f"made-{name}-5f0c2b7e" for name in ("variable", "flag", "named", "password"))
SECRETS = (VARIABLE, FLAG, NAMED, PASSWORD)
LIMIT_S = 600.0


@dataclass
class Run:
    """A study that ended: its folders, its output, the arguments of all processes meanwhile, and its database."""

    folders: list[Path]
    script: Path
    code: int = -1
    output: str = ""
    arguments: set[bytes] = field(default_factory=set)
    database: str = ""


def _read_arguments(into: set[bytes], stop: threading.Event, own: bytes) -> None:
    """Collect the arguments of every process until `stop`; the first second of the command itself is not hidden."""
    while not stop.wait(0.02):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    words = Path(f"/proc/{name}/cmdline").read_bytes()
                except OSError:
                    continue
                if words != own:
                    into.add(words)


@pytest.fixture(scope="module")
def run(home: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("study")
    vllm = install_fake_vllm(tmp_path_factory.mktemp("bin"), noise=0.001, requires_key=True)
    with postgres_server() as server:
        url = server.new_database().replace("tuner@", f"tuner:{PASSWORD}@")
        argv = (
            *("optimize", "--storage", url, "--vllm", str(vllm), "--model", str(model), "--space", "speculation-cpu"),
            *("--users", "10", "--prompts", "20", "--input-len", "128", "--output-len", "64", "--study", "secret"),
            *("--env", f"MADE_TOKEN={VARIABLE}", "--env", f"MADE_NAME={NAMED}", "--secret", "MADE_NAME"),
            *("--trials", "3", "--confirm-rounds", "1", "--baseline-repeats", "1", "--finalists", "1", "--json"),
            *("--plain", "--", "--max-model-len", "1024", "--api-key", "${MADE_KEY}"),
        )
        command = [sys.executable, "-m", "tuner.cli.main", *argv]
        found = Run([folder, home], folder / "best_serve.sh")
        own = b"\0".join(word.encode() for word in command) + b"\0"
        stop = threading.Event()
        reader = threading.Thread(target=_read_arguments, args=(found.arguments, stop, own))
        reader.start()
        try:
            environment = {**os.environ, "MADE_KEY": FLAG}
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        finally:
            stop.set()
            reader.join()
        found.code, found.output = done.returncode, done.stdout + done.stderr
        with psycopg.connect(url) as connection:
            tables = connection.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
            rows = [connection.execute(f'select * from "{table}"').fetchall() for (table,) in tables]
        found.database = repr(rows)
        yield found


@pytest.mark.slow
def test_the_study_runs_with_its_secrets(run: Run) -> None:
    assert run.code == 0, run.output
    assert json.loads(run.output[run.output.index("{\n") : run.output.rindex("}") + 1])["study"] == "secret"
    assert "${MADE_TOKEN}" in run.database


@pytest.mark.slow
def test_no_file_contains_a_secret(run: Run) -> None:
    files = [path for folder in run.folders for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    assert {"command.txt", "server.log", "mlflow.db", "best_serve.sh"} <= names
    contents = {path: path.read_bytes() for path in files}
    assert [
        (str(path), secret) for path, data in contents.items() for secret in SECRETS if secret.encode() in data
    ] == []


@pytest.mark.slow
def test_the_database_and_the_output_contain_no_secret(run: Run) -> None:
    assert [secret for secret in SECRETS if secret in run.database] == []
    assert [secret for secret in SECRETS if secret in run.output] == []


@pytest.mark.slow
def test_no_process_has_a_secret_in_its_arguments(run: Run) -> None:
    assert any(b"follower" in words for words in run.arguments)
    assert any(b"bench" in words for words in run.arguments)
    assert [(words, secret) for words in run.arguments for secret in SECRETS if secret.encode() in words] == []


def _serve(run: Run, tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a `vllm` that prints its arguments and the variables of the secrets."""
    program = tmp_path / "vllm"
    program.write_text('#!/bin/sh\necho "$MADE_TOKEN $MADE_NAME $VLLM_API_KEY"\n')
    program.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "VLLM": str(program), **variables}
    return subprocess.run([str(run.script), *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_script_reads_the_secrets_from_its_environment(run: Run, tmp_path: Path) -> None:
    done = _serve(run, tmp_path, MADE_TOKEN="one", MADE_NAME="two", MADE_KEY="three")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "one two three"


@pytest.mark.slow
def test_the_script_ends_with_one_line_without_a_secret(run: Run, tmp_path: Path) -> None:
    done = _serve(run, tmp_path, MADE_TOKEN="one", MADE_NAME="two")
    line = "best_serve.sh: the server needs the secret MADE_KEY; set it: export MADE_KEY=...\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line)
    assert _serve(run, tmp_path, "--help").returncode == 0


@pytest.mark.parametrize("words", [("--api-key", FLAG), (f"--hf-token={FLAG}",), ("--api-key", "${MADE_KEY}", FLAG)])
def test_a_literal_secret_of_a_flag_is_refused(
    words: tuple[str, ...], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MADE_KEY", "x")
    printed = run_here(tmp_path, "optimize", "--gpu", "h200", "--model", str(model), "--", *words)
    flag = words[0].partition("=")[0]
    refused(
        printed, tmp_path, f"server argument '{flag}'", "refer to an environment variable, such as '${VLLM_API_KEY}'"
    )
    assert FLAG not in printed.err


@pytest.mark.parametrize(
    ("words", "option"),
    [(("--env", "A=${MADE_UNSET}"), "--env"), (("--", "--api-key", "${MADE_UNSET}"), "server argument")],
)
def test_a_reference_to_a_variable_that_is_not_set_is_refused(
    words: tuple[str, ...], option: str, model: Path, tmp_path: Path
) -> None:
    printed = run_here(tmp_path, "optimize", "--gpu", "h200", "--model", str(model), *words)
    refused(printed, tmp_path, f"{option} '${{MADE_UNSET}}': the environment has no variable MADE_UNSET")
