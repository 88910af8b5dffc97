import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.unit.export.formats.readers import run_line
from tuner.testing.exporter import FormatContract, Started, deployment


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
