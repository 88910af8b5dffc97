"""Formats for one machine: a command, vLLM's configuration file, and a systemd unit."""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from search_spaces.argv import VLLM_NAMES
from tests.programs import needed
from tests.unit.export.formats.readers import documents, loaded_config, run_line
from tuner.errors import SettingError
from tuner.export.words import arguments_of
from tuner.testing.exporter import EXAMPLES, TEXTS, FormatContract, Started, deployment


class TestCommand(FormatContract):
    name = "command"

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        return run_line(shlex.quote(str(path)), path.parent, variables)

    def test_it_is_one_line(self, tmp_path: Path) -> None:
        made = deployment(argv=("--chat-template", "two\nlines\r"), environment={"VLLM_X": "it's\n"})
        lines = self.text(tmp_path, made).splitlines()
        assert [line for line in lines if not line.startswith("#")] == [
            r"env $'VLLM_X=it\'s\x0a' vllm serve org/model --chat-template $'two\x0alines\x0d'"
        ]

    def test_a_secret_that_is_not_set_ends_it(self, tmp_path: Path) -> None:
        made = deployment(argv=("--api-key", "${MY_KEY}"), environment={}, references=frozenset({"MY_KEY"}))
        assert self.text(tmp_path, made).endswith('\nvllm serve org/model --api-key "${MY_KEY:?}"\n')


class TestVllmConfig(FormatContract):
    name = "vllm-config"

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        line = re.search(r"start it in bash: (.*)", path.read_text(encoding="utf-8"))
        assert line is not None
        found = run_line(line[1], path.parent, variables)
        assert found.words[0] == "--config"
        model, name, *words = loaded_config(path.parent / found.words[1])
        assert model == "--model"
        return Started((name, *words, *found.words[2:]), found.environment)

    def canonical(self, words: tuple[str, ...]) -> Any:
        """`--flag value` and `--flag=value` are the same, and a short flag is its long one."""
        model, *arguments = arguments_of(words)
        return (model, *((VLLM_NAMES.get(each.flag, each.flag), each.values) for each in arguments))

    def written(self, folder: Path, *words: str) -> dict[str, Any]:
        (content,) = documents(self.write(folder, deployment(argv=words, environment={})))
        assert isinstance(content, dict)
        return content

    def test_switches_keep_the_names_that_the_study_gave(self, tmp_path: Path) -> None:
        words = (
            "--enforce-eager",
            "--no-enable-prefix-caching",
            "--max-num-seqs",
            "64",
            "--watermark=0.10",
        )
        assert self.written(tmp_path, *words) == {
            "model": "org/model",
            "enforce-eager": True,
            "no-enable-prefix-caching": True,
            "max-num-seqs": 64,
            "watermark": "0.10",
        }

    def test_short_dotted_and_listed_flags(self, tmp_path: Path) -> None:
        words = ("-O3", "-O.cudagraph_mode=NONE", "-tp", "2", "--cudagraph-capture-sizes", "1", "2", "4")
        assert self.written(tmp_path, *words) == {
            "model": "org/model",
            "optimization-level": 3,
            "compilation-config.cudagraph_mode": "NONE",
            "tensor-parallel-size": 2,
            "cudagraph-capture-sizes": ["1", "2", "4"],
        }

    def test_repeated_flags_and_values_with_a_dash_keep_their_order(self, tmp_path: Path) -> None:
        words = ("--middleware", "a", "--middleware", "b", "--chat-template=-x")
        assert self.written(tmp_path, *words) == {
            "model": "org/model",
            "middleware=a": True,
            "middleware": "b",
            "chat-template=-x": True,
        }

    def test_no_second_file_without_variables(self, tmp_path: Path) -> None:
        path = self.write(tmp_path, deployment(environment={}))
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize(
        ("words", "environment", "message"),
        [
            (("stray",), {}, "it needs long flags, and 'stray' is none"),
            (("-zz", "1"), {}, "it needs long flags, and '-zz' is none"),
            ((), {"a-b": "c"}, "no shell can set the variable 'a-b'"),
        ],
    )
    def test_what_it_cannot_hold_is_refused(
        self, tmp_path: Path, words: tuple[str, ...], environment: dict[str, str], message: str
    ) -> None:
        with pytest.raises(SettingError, match=re.escape(f"format='vllm-config': {message}")):
            self.write(tmp_path, deployment(argv=words, environment=environment))
        assert list(tmp_path.iterdir()) == []


_COMMAND = re.compile(r"^\t+Command Line: (.*)$", re.MULTILINE)
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|([^ ]+)')
_ESCAPE = re.compile(r"\\([0-7]{3}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def dumped(path: Path) -> str:
    """Return systemd's own dump of a unit, which it finds nothing wrong with."""
    verify = [str(needed("systemd")), "verify", str(path)]
    calm = subprocess.run(verify, capture_output=True, timeout=60)
    assert (calm.returncode, calm.stderr) == (0, b"")
    environment = {**os.environ, "SYSTEMD_LOG_LEVEL": "debug", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(verify, env=environment, capture_output=True, timeout=60)
    return (done.stdout + done.stderr).decode(errors="surrogateescape")


def unquoted(line: str) -> list[str]:
    """Return the words of a dumped command."""
    return [bare or _unescaped(inner) for inner, bare in _WORD.findall(line)]


def _unescaped(text: str) -> str:
    """Return a dumped word; systemd escapes the single bytes of characters that it does not print."""
    found = re.sub(
        _ESCAPE.pattern.encode(), lambda match: _byte(match[1]), text.encode(errors="surrogateescape"), flags=re.DOTALL
    )
    return found.decode(errors="surrogateescape")


def _byte(code: bytes) -> bytes:
    if code.isdigit():
        return bytes([int(code, 8)])
    if len(code) == 3:
        return bytes([int(code[1:], 16)])
    return _LETTERS.get(code.decode("latin-1"), "").encode() or code


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """Return what systemd makes of a word when it starts the command (systemd.service(5), "Command lines")."""
    return re.sub(r"\$\$|\$\{(\w+)\}", lambda match: "$" if match[0] == "$$" else variables.get(match[1], ""), word)


@pytest.mark.program("systemd")
class TestSystemd(FormatContract):
    name = "systemd"

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        # systemd refuses a program that is not there
        path.write_text(path.read_text(encoding="utf-8").replace("/opt/vllm/bin/vllm serve", "/bin/true serve"))
        text = dumped(path)
        command = next(line for line in _COMMAND.findall(text) if " serve " in line)
        words = [expanded(word, variables) for word in unquoted(command)]
        place = words.index("serve")
        assignments = dict(word.split("=", 1) for word in words[1 : place - 1])
        assert words[-4:] == ["--host", "127.0.0.1", "--port", "8000"]
        found = re.findall(r"^\t\tEnvironment: (\w+)=(.*?)(?=\n\t\t\w)", text, re.DOTALL | re.MULTILINE)
        return Started(tuple(words[place + 1 : -4]), {**dict(found), **assignments})

    def possible(self, environment: dict[str, str]) -> dict[str, str]:
        """A dumped value with a line of its own that looks like another setting could not be told from it."""
        return {name: value for name, value in environment.items() if "\n\t\t" not in value}

    def line(self, folder: Path, start: str, **changes: Any) -> str:
        text = self.text(folder, deployment(**changes))
        return next(line for line in text.splitlines() if line.startswith(start))

    def test_start_limit_restart_and_user(self, tmp_path: Path) -> None:
        text = self.text(tmp_path, deployment(200.0))
        for line in ("TimeoutStartSec=800", "Restart=on-failure", "KillMode=mixed", "DynamicUser=yes"):
            assert f"\n{line}\n" in text
        assert "/health" in self.line(tmp_path, "ExecStartPost=")

    def test_quotes(self, tmp_path: Path) -> None:
        words = ("--chat-template", '50 % $HOME \\ "q" it\'s', "--speculative-config", '{"a":1}')
        start = self.line(tmp_path, "ExecStart=", argv=words, environment={})
        assert start == (
            'ExecStart=/opt/vllm/bin/vllm serve org/model --chat-template "50 %% $$HOME \\\\ \\"q\\" it\'s" '
            '--speculative-config "{\\"a\\":1}" --host 127.0.0.1 --port 8000'
        )

    def test_secrets_are_in_a_file(self, tmp_path: Path) -> None:
        known = frozenset({"HF_TOKEN", "MY_KEY"})
        variables = {"HF_TOKEN": "${HF_TOKEN}", "OTHER": "${MY_KEY}"}
        text = self.text(tmp_path, deployment(argv=("--api-key", "${MY_KEY}"), environment=variables, references=known))
        assert "EnvironmentFile=/etc/vllm-server.env\n" in text
        assert 'ExecStartPre=/usr/bin/test -n "${MY_KEY}"\n' in text
        start = 'ExecStart=/usr/bin/env "OTHER=${MY_KEY}" /opt/vllm/bin/vllm serve org/model --api-key "${MY_KEY}" '
        assert start in text
        assert "Environment=HF_TOKEN" not in text

    def test_the_token_of_a_hub_may_be_in_the_file(self, tmp_path: Path) -> None:
        assert "\nEnvironmentFile=-/etc/vllm-server.env\n" in self.text(tmp_path, deployment())
        assert "EnvironmentFile" not in self.text(tmp_path, deployment(model="/data/m"))

    @EXAMPLES
    @given(text=TEXTS)
    def test_odd_studies_and_programs(self, tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
        path = self.write(tmp_path_factory.mktemp("s"), deployment(study=text, executable=None, environment={}))
        assert self.read(path, {}).words[0] == "org/model"

    def test_a_variable_that_a_unit_cannot_set_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="a unit cannot set the variable 'a-b'"):
            self.write(tmp_path, deployment(environment={"a-b": "c"}))
