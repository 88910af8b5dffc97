"""The contract of every deployment format: the format's own program reads from a file what was written.

A test class defines how that program reads a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from records.trials import Provenance
from tuner.engines.vllm.kind import INSTANCES
from tuner.errors import SettingError
from tuner.export.deployment import Deployment
from tuner.export.formats.document import File
from tuner.export.formats.registry import Format, formats, write_deployment
from tuner.export.quoting import PORT_PLACEHOLDER, RESULTS_PLACEHOLDER
from tuner.export.references import Reference
from tuner.export.verification import Verification
from tuner.scoring.goals import parse_slo

NASTY = (
    "two words", "it's", 'say "hi"', "line\nbreak", "$(touch pwned)", "`touch pwned`", "; touch pwned #", "${HOME}",
    "-", "--flag", "a=b", "a,b", "*", "~", "!!", "\\", "'", "", "\r", "\x01\x7f", "ünïcode “quotes”", "@@BENCH@@",
    "# shellcheck disable=SC9999", "\u2028touch pwned", "[0]=x", "{a,b}", "&", "\tTab", "nbsp\u00a0",
)  # fmt: skip
"""Words that a shell reads as something else."""

NGRAM_JSON = '{"method":"ngram","num_speculative_tokens":4}'
QUOTED_JSON = '{"a": "it\'s $HOME %h \\"q\\""}'

ODD = (
    *NASTY,
    *("1e3", "0o17", "0x1F", "007", "1_000", "12:30:00", "y", "No", "null", "~", "true", "1.10", ".5", "=", "---"),
    *("%h", "%%", "%", "$", "$$", "$$$", "${X}", "$(X)", "$${X}", "$$(X)", "$X", "$(", "${", "#", "a #b", "a: b", "&a"),
    *("!tag", "|", ">", "@", "{", "[1]", "\\x41", "\\", "a\\", "\t", "\x85", "\u2029", "😀", "{{ .Name }}", ";", "*a"),
    NGRAM_JSON, QUOTED_JSON,
    "two\nlines\n",
)  # fmt: skip
"""Words that a shell, YAML, systemd, Compose, Kubernetes or Helm reads as something else."""

TEXTS = st.one_of(
    st.sampled_from(ODD),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    st.integers().map(str),
    st.floats(allow_nan=False).map(str),
)
VALUES = TEXTS.filter(lambda text: not text.startswith("/"))
"""Values of variables. None begins with `/`: formats of containers leave out paths of the machine that measured."""

FLAGS = ("--max-num-seqs", "--chat-template", "--speculative-config", "--enforce-eager", "--no-async-scheduling", "-tp")
VARIABLES = ("VLLM_X", "OMP_NUM_THREADS", "LD_PRELOAD_LIST", "A_1")
SECRET = "it's a $secret, 100 %"
EXAMPLES = settings(
    max_examples=12,
    deadline=None,
    # A failing example of one format is tried on the others, too, which is welcome. A busy machine makes texts slowly.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)

_BASE_URL = f"http://127.0.0.1:{PORT_PLACEHOLDER}/v1"
SENT = Verification(
    bench_argv=("bench", "serve", "--base-url", _BASE_URL, "--result-dir", RESULTS_PLACEHOLDER),
    reference={"output_throughput": Reference(4300.0, 4200.0, 4400.0)},
)
"""What `--verify` of the script below sends, and what it compares."""


def a_script(**changes: object) -> Deployment:
    """Return a script; the changes are fields of it or of its verification."""
    sent = {each.name: changes.pop(each.name) for each in fields(Verification) if each.name in changes}
    script = Deployment(
        study="demo",
        trial=12,
        model="org/model",
        served_name="org/model",
        argv=("--max-num-seqs", "64", "--enforce-eager"),
        environment={"VLLM_MARLIN_INPUT_DTYPE": "fp8"},
        vllm_version="0.32.0",
        device="Tesla T4",
        date=date(2026, 11, 20),
        provenance=Provenance.MEASURED,
        numbers=(("output throughput", "4300 tok/s"),),
        slos=(parse_slo("p99_tpot_ms<50"),),
        verdict="beats the defaults by 29 %",
        verification=replace(SENT, **sent),  # type: ignore[arg-type]
        executable="/opt/vllm/bin/vllm",
    )
    return replace(script, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Started:
    """What a program reads from a file: the arguments of `vllm serve`, and the variables of the server."""

    words: tuple[str, ...]
    environment: Mapping[str, str]


def deployment(startup_s: float | None = 42.0, /, **changes: Any) -> Deployment:
    """Return the deployment of a script; the changes are as for `a_script`, and `startup_s` is its start-up in s."""
    return a_script(**changes, startup_s=startup_s)


def instances(number: int, *words: str, gpus: int = 4, device: str = "Tesla T4") -> Deployment:
    """Return a deployment of `number` servers with the flags `words`, started by `tuner-vllm-instances`."""
    return deployment(
        argv=(*words, "--instances", str(number)), program=INSTANCES, gpus=gpus, device=device, executable=None
    )


SUFFIX = ("--speculative-config", '{"method":"suffix","num_speculative_tokens":12}')
"""Flags of suffix decoding, for which vLLM needs a package that its image lacks."""


def words_of(arguments: Mapping[str, list[str]]) -> tuple[str, ...]:
    """Return the arguments as words; values by flag.

    A single value that looks like a flag is written `--flag=value`, as argparse needs it; among several it is left out.
    """
    words: list[str] = []
    for flag, values in arguments.items():
        if len(values) == 1 and values[0].startswith("-"):
            words.append(f"{flag}={values[0]}")
        else:
            words += [flag, *(value for value in values if not value.startswith("-"))]
    return tuple(words)


class FormatContract:
    """Tests of one format; a subclass sets `name` and defines `read`."""

    name: str
    passes_model = True
    """Whether the words that are read begin with the model and its served name."""

    @property
    def format(self) -> Format:
        """The tested format."""
        return formats()[self.name]

    def read(self, path: Path, variables: Mapping[str, str]) -> Started:
        """Return what the format's own program reads from a file and those beside it.

        Args:
            path: the file.
            variables: the variables that the file refers to.
        """
        raise NotImplementedError

    def canonical(self, words: tuple[str, ...]) -> Any:
        """Return words in a form that is equal for all ways to write the same arguments."""
        return words

    def write(self, folder: Path, made: Deployment) -> Path:
        return write_deployment(self.format, made, folder / self.format.file)[0]

    def text(self, folder: Path, made: Deployment) -> str:
        return self.write(folder, made).read_text(encoding="utf-8")

    def files(self, made: Deployment) -> tuple[File, ...]:
        return self.format.render(made, "server")

    def expected(self, made: Deployment, words: tuple[str, ...]) -> Any:
        """Return what `canonical` should make of the words that are read, for a deployment with the flags `words`."""
        named = () if made.served_name == made.model else ("--served-model-name", made.served_name)
        return self.canonical((made.model, *named, *words) if self.passes_model else words)

    @settings(EXAMPLES)
    @given(
        arguments=st.dictionaries(st.sampled_from(FLAGS), st.lists(TEXTS, max_size=2), max_size=4),
        environment=st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=3),
    )
    @example(arguments={"--max-num-seqs": ["64"], "--enforce-eager": []}, environment={})
    @example(arguments={"--speculative-config": [NGRAM_JSON], "-tp": ["2"]}, environment={"VLLM_X": QUOTED_JSON})
    @example(arguments={"--chat-template": ["$(X) ${X} $X $$ %h %% '\"` \\ \n é 😀 #"]}, environment={"A_1": "1e3"})
    def test_what_is_read_is_what_was_written(
        self, tmp_path: Path, arguments: dict[str, list[str]], environment: dict[str, str]
    ) -> None:
        words = words_of(arguments)
        made = deployment(argv=words, environment=self.possible(environment))
        found = self.read(self.write(tmp_path, made), {})
        assert self.canonical(found.words) == self.expected(made, words)
        assert made.variables.items() <= found.environment.items()

    def possible(self, environment: dict[str, str]) -> dict[str, str]:
        """Return the variables that the format can hold."""
        return environment

    @settings(EXAMPLES, max_examples=10)
    @given(text=TEXTS)
    @example(text="a\n---\nb: c")
    @example(text="ends with a backslash \\")
    def test_odd_facts_stay_in_the_comments(self, tmp_path: Path, text: str) -> None:
        made = deployment(study=text, verdict=text, numbers=((text, text),), flag_effects=(text,), answers=text)
        plain = deployment()
        odd = self.read(self.write(tmp_path, made), {})
        assert odd.words == self.read(self.write(tmp_path, plain), {}).words

    def test_a_file_begins_with_where_it_comes_from(self) -> None:
        facts = {
            "flag_effects": ("max_num_seqs=64: score ×1.20",),
            "answers": "NOT CHECKED: fp8",
            "drivers": ("580.1",),
        }
        for file in self.files(deployment(**facts)):
            head = [line for line in file.text.splitlines() if line.startswith("# ")]
            assert file.text.startswith("#")
            for row in (
                "# study     demo, trial 12",
                "# verdict   beats the defaults by 29 %",
                "# measured  output throughput: 4300 tok/s",
                "# SLO       p99_tpot_ms<50",
                "# answers   NOT CHECKED: fp8",
                "# flags     max_num_seqs=64: score ×1.20",
                "# vLLM      0.32.0 (/opt/vllm/bin/vllm)",
                "# GPU       Tesla T4",
                "# driver    580.1",
                "# date      2026-11-20",
                "# start-up  42 s measured; the limit is 600 s",
            ):
                assert row in head

    def test_a_simulated_study_is_marked_in_the_first_comment(self) -> None:
        for file in self.files(deployment(provenance=Provenance.SIMULATED)):
            first = next(line for line in file.text.splitlines() if line.startswith("# "))
            assert first.startswith("# Simulated, not measured")
            assert "42 s simulated" in file.text

    def test_missed_slos_are_said_first(self) -> None:
        for file in self.files(deployment(missed=("p99_tpot_ms<50: 60, +20 % beyond the bound",))):
            assert "does NOT meet the SLOs" in "\n".join(file.text.splitlines()[:3])

    def test_no_image_is_the_latest(self) -> None:
        assert [file for file in self.files(deployment()) if "latest" in file.text] == []

    def test_the_same_deployment_gives_the_same_files(self) -> None:
        assert self.files(deployment()) == self.files(deployment())

    def test_host_and_port_of_the_trial_are_left_out(self, tmp_path: Path) -> None:
        made = deployment(argv=("--max-num-seqs", "8", "--port", "31999", "--host", "10.9.8.7"))
        assert "31999" not in self.text(tmp_path, made)
        assert "10.9.8.7" not in self.text(tmp_path, made)

    def test_secrets_are_references(self, tmp_path: Path) -> None:
        words = ("--max-num-seqs", "8", "--hf-token", "${MY_TOKEN}")
        environment = {"OTHER": "a ${MY_TOKEN}"}
        made = deployment(argv=words, environment=environment, references=frozenset({"MY_TOKEN"}))
        found = self.read(self.write(tmp_path, made), {"MY_TOKEN": SECRET})
        assert found.environment["OTHER"] == f"a {SECRET}"
        assert self.canonical(found.words) == self.expected(made, (*words[:-1], SECRET))

    def test_instances_that_shared_a_gpu_are_refused_unless_a_launcher_starts_them(self, tmp_path: Path) -> None:
        made = instances(2, gpus=1)
        if self.format.any_engine:
            assert "tuner-vllm-instances serve" in self.text(tmp_path, made)
            return
        with pytest.raises(SettingError, match=r"shared 1 GPU;|the flags of one server"):
            self.write(tmp_path, made)
        assert list(tmp_path.iterdir()) == []

    def test_bytes_that_are_no_text_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(SettingError, match="not UTF-8 text"):
            self.write(tmp_path, deployment(argv=("--chat-template", "\udcff")))
        assert list(tmp_path.iterdir()) == []
