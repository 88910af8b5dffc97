import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from search_spaces.argv import VLLM_NAMES
from tests.unit.export.formats.readers import documents, loaded_config, run_line
from tuner.errors import SettingError
from tuner.export.deployment import arguments_of
from tuner.testing.exporter import FormatContract, Started, deployment


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
