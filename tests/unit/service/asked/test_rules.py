"""What a request may ask for: settings, contents of files, limits, and the server's rules."""

import re
from pathlib import Path
from typing import Any

import pytest

import search_spaces
from search_spaces import known_model, load_space, space_names
from search_spaces.loader import parse_space
from tests.unit.service.asked.test_walk import FLAGS_THAT_HARM
from tuner.errors import SettingError, UserError
from tuner.service.asked.allowed import check_space, check_words, shipped
from tuner.service.asked.check import check_traffic
from tuner.service.asked.contents import check_contents, files_of, read_only, with_files
from tuner.service.asked.rules import ServerRules, check_rules
from tuner.service.asked.settings import names, read_settings
from tuner.settings.declared import Entries, Number, Text, check_limits, settings_of
from tuner.settings.study import LARGEST_CONTENT, StudySettings
from tuner.settings.submit import SubmittedSettings
from tuner.use_cases.size.shapes import shapes_of

SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
"""A variable that a shipped space writes."""

OPEN = ServerRules(
    flags=frozenset({"--chat-template"}), variables=frozenset({"VLLM_A"}), secrets=frozenset({"HF_TOKEN"})
)


def check(rules: ServerRules, /, **given: Any) -> None:
    check_rules(read_settings(given, "s"), rules)


def test_a_hub_model_is_allowed_unless_the_server_says_no() -> None:
    check(ServerRules(), model="Qwen/Qwen2.5-0.5B")
    with pytest.raises(SettingError, match="does not allow the model"):
        check(ServerRules(hub_models=False), model="Qwen/Qwen2.5-0.5B")


@pytest.mark.parametrize(
    "path",
    [
        *("/etc", "../models", "./m", "~/m", "/models/../etc", "models", "a/b/c", "/models"),
        *("http://169.254.169.254/latest", "file:///etc/passwd"),
    ],
)
def test_a_folder_outside_the_allowed_ones_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(SettingError) as caught:
        check(ServerRules(model_folders=(tmp_path / "models",)), model=path)
    assert caught.value.field == "model"


def test_a_link_out_of_an_allowed_folder_is_refused(tmp_path: Path) -> None:
    models, secret = tmp_path / "models", tmp_path / "secret"
    models.mkdir()
    secret.mkdir()
    (models / "inside").mkdir()
    (models / "link").symlink_to(secret)
    rules = ServerRules(model_folders=(models,))
    check(rules, model=str(models / "inside"))
    with pytest.raises(SettingError):
        check(rules, model=str(models / "link"))


@pytest.mark.parametrize("name", ["preset", "space", "quality_task", "gpu", "baseline", "enqueue", "vllm_version"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../space.yaml", "contents/p.yaml", "./x", "a\\b", "lm-eval:contents/task", "~/x", "x\0y"]
)
def test_a_path_where_a_name_belongs_is_refused(name: str, path: str) -> None:
    with pytest.raises(SettingError) as caught:
        check(OPEN, **{name: [path] if name == "enqueue" else path})
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["preset", "space", "gpu"])
def test_a_file_that_exists_is_refused_as_one_that_does_not(name: str, tmp_path: Path) -> None:
    there, absent = tmp_path / "a.yaml", tmp_path / "b.yaml"
    there.write_text("model: [")
    texts = []
    for path in (there, absent):
        with pytest.raises(SettingError) as caught:
            check(OPEN, **{name: str(path)})
        texts.append(str(caught.value).replace(str(path), "FILE"))
    assert texts[0] == texts[1]
    assert "FILE" in texts[0]


@pytest.mark.parametrize("task", ["lm-eval:gsm8k", "lm-eval:gsm8k,arc_easy", "lm-eval:mmlu-pro", '{"prompt": "a"}\n'])
def test_a_quality_task_is_a_name_or_a_content(task: str) -> None:
    check(ServerRules(), quality_task=task)


@pytest.mark.parametrize("task", ["lm-eval:", "lm-eval:a.yaml", "lm-eval:a/b", "lm-eval:a,", "lm-eval:a,../b", "gsm8k"])
def test_a_quality_task_names_no_file(task: str) -> None:
    with pytest.raises(SettingError) as caught:
        check(ServerRules(), quality_task=task)
    assert caught.value.field == "quality_task"


def test_flags_and_variables_need_no_consent_if_shipped_spaces_have_them() -> None:
    check(ServerRules(), server_arguments=["--max-num-seqs", "8"], env={SAMPLER: "1"})
    check(ServerRules(), baseline="--max-num-seqs 8 --enable-prefix-caching")


def test_a_server_adds_flags_with_every_value() -> None:
    check(OPEN, server_arguments=["--chat-template", "/srv/chat.jinja"])
    with pytest.raises(SettingError, match="does not allow the flag"):
        check(ServerRules(), server_arguments=["--chat-template", "/srv/chat.jinja"])


def test_a_baseline_of_flags_is_no_way_around_them() -> None:
    with pytest.raises(SettingError) as caught:
        check(OPEN, baseline="--trust-remote-code --max-num-seqs 8")
    assert caught.value.field == "baseline"
    with pytest.raises(SettingError, match="not a command line"):
        check(OPEN, baseline="--x 'open")


def test_variables_and_secrets_are_the_servers_to_allow() -> None:
    check(OPEN, env={"VLLM_A": "/any value"})
    check(OPEN, env={"VLLM_A": "${HF_TOKEN}"})
    refused = ("LD_PRELOAD", "/x.so"), ("PYTHONPATH", "x"), ("VLLM_A", "${AWS_SECRET}"), (SAMPLER, "/x")
    for name, value in refused:
        with pytest.raises(SettingError) as caught:
            check(OPEN, env={name: value})
        assert caught.value.field == "env"
    with pytest.raises(SettingError):
        check(OPEN, server_arguments=["--chat-template", "${AWS_SECRET}"])


NONE: frozenset[str] = frozenset()


def refused(*words: str) -> SettingError:
    with pytest.raises(SettingError) as caught:
        check_words("server_arguments", words, NONE)
    return caught.value


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "8"],
        ["--max_num_seqs=8"],
        ["-tp", "2"],
        ["-O3"],
        ["-cc.mode", "3"],
        ["--compilation-config", '{"mode": 3, "pass_config": {"fuse_norm_quant": true}}'],
        ["--compilation-config.custom_ops+", "+rms_norm"],
        ["--compilation-config", '{"custom_ops": ["+rms_norm", "-quant_fp8"]}'],
        ["--no-enable-prefix-caching"],
        ["--gpu-memory-utilization", ".95"],
        ["--max-model-len", "32k"],
        ["--max-model-len", "-1"],
        ["--cudagraph-capture-sizes", "1", "2", "4"],
        ["--attention-backend", "TRITON_ATTN"],
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ["--limit-mm-per-prompt", '{"image": 0}'],
        ["--reasoning-parser", "qwen3", "--seed", "1"],
        ["--generation-config", "vllm"],
    ],
)
def test_flags_of_the_list_are_allowed_in_each_spelling(words: list[str]) -> None:
    check_words("server_arguments", words, NONE)


SPELLINGS = (
    *("--trust-remote-code=true", "--TRUST-REMOTE-CODE", "-trust-remote-code", "--no-trust-remote-code", "--conf"),
    *("--config=/etc/x.yaml", "--hf-overrides.auto_map=x", "--hf_overrides={}", "--worker-cls=os.system"),
)


@pytest.mark.parametrize("flag", [*FLAGS_THAT_HARM, *SPELLINGS])
def test_flags_that_load_code_or_read_files_are_not_on_the_list(flag: str) -> None:
    assert refused(flag, "x").rule == "this server does not allow the flag"


def test_an_abbreviation_is_refused_with_the_whole_name() -> None:
    assert refused("--max-model", "5").remedy == "write the whole name, such as --max-model-len"


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "/etc/passwd"],
        ["--attention-backend", "os.path"],
        ["--reasoning-parser", "../x"],
        ["--tool-call-parser", "http://169.254.169.254/"],
        ["--quantization", "${HOME}"],
        ["--compilation-config", '{"cudagraph_mode": "a.B"}'],
        ["--compilation-config", '{"custom_ops": ["--x"]}'],
        ["--seed", ""],
        ["--seed", "1\n--x"],
    ],
)
def test_a_value_names_no_file_no_address_and_no_class(words: list[str]) -> None:
    assert refused(*words).rule.startswith("this server allows numbers and plain words as values")


def test_the_method_of_drafts_is_one_of_the_shipped() -> None:
    found = refused("--speculative-config", '{"method": "custom_class", "model": "evil"}')
    assert (found.field, found.value) == ("server_arguments", "--speculative-config.method")
    assert refused("--generation-config", "gpt2").remedy == "give one of auto, vllm"  # a hub's model
    assert refused("--speculative-config.model", "evil").remedy == "give one of {{draft_model}}"


def test_a_word_before_the_first_flag_is_refused() -> None:
    assert refused("evil").rule == "this server does not allow the flag"


@pytest.mark.parametrize("name", space_names())
def test_every_shipped_space_is_allowed(name: str) -> None:
    check_space(load_space(name).specs, NONE, NONE)


def test_the_list_is_what_the_files_of_the_spaces_name() -> None:
    """Compared with the flags that a search for `--` finds in the texts of the files."""
    texts = [path.read_text() for path in (Path(search_spaces.__file__).parent / "vllm").glob("*.yaml")]
    found = {flag for text in texts for flag in re.findall(r"(?:flag: |args: \[)(--[a-z0-9-]+)", text)}
    assert {f"--{flag.removeprefix('--no-').removeprefix('--')}" for flag in found} | {"--cudagraph-capture-sizes"} == {
        name.partition(".")[0] for name in shipped()[0]
    }


@pytest.mark.parametrize(
    "lines",
    [
        ["type: bool", "flag: --trust-remote-code"],
        ["type: bool", "flag: --enforce-eager", "no_flag: --no-trust-remote-code"],
        ["type: int", "low: 1", "high: 2", "flag: --ssl-keyfile"],
        ["type: int", "low: 1", "high: 2", "env: LD_PRELOAD"],
        ["type: int", "low: 1", "high: 2", "json: {flag: --compilation-config, key: backend}"],
        ["type: categorical", "choices: [{value: a, args: [--trust-remote-code]}]"],
        ["type: categorical", "choices: [{value: a, args: [--max-num-seqs, '1', --tr]}]"],
        ["type: categorical", "choices: [{value: a, env: {LD_PRELOAD: x}}]"],
        ["type: categorical", "choices: [{value: a, env: {VLLM_USE_FLASHINFER_SAMPLER: /x}}]"],
        ["type: categorical", "choices: [/etc/passwd]", "flag: --attention-backend"],
        ["type: categorical", "choices: [--trust-remote-code]", "flag: --attention-backend"],
        ["type: categorical", "choices: [-tr]", "flag: --attention-backend"],
        [
            "type: categorical",
            "json: {flag: --speculative-config, key: method}",
            "choices: [{value: a, json: {model: a/b}}]",
        ],
    ],
)
def test_a_space_with_anything_else_is_refused(lines: list[str]) -> None:
    text = "parameters:\n  own:\n" + "".join(f"    {line}\n" for line in ("description: x", *lines))
    with pytest.raises(SettingError) as caught:
        check_space(parse_space(text).specs, NONE, NONE)
    assert caught.value.field == "space"


DECLARED = settings_of(SubmittedSettings)
SWITCHES = {name for name, (kind, _) in DECLARED.items() if kind is bool}
LIMITS = {name: each.limit for name, (_, each) in DECLARED.items() if each.limit is not None}


def test_every_setting_but_a_switch_has_a_limit() -> None:
    assert set(LIMITS) == set(names()) - SWITCHES


def _beyond() -> list[tuple[str, object]]:
    """Return a value beyond each limit."""
    found: list[tuple[str, object]] = []
    for name, limit in LIMITS.items():
        if isinstance(limit, Number):
            found += [(name, limit.least - 1), (name, limit.most + 1), (name, float("nan"))]
        elif isinstance(limit, Text):
            found.append((name, "x" * (limit.longest + 1)))
        elif name == "env":
            found += [(name, {str(index): "" for index in range(limit.most + 1)}), (name, {"A": "x" * 10_001})]
        elif name == "card_price":
            found += [(name, {str(index): 1.0 for index in range(limit.most + 1)}), (name, {"x" * 301: 1.0})]
        else:
            found += [(name, ("x",) * (limit.most + 1)), (name, ("x" * (limit.longest + 1),))]
    return found


@pytest.mark.parametrize(("name", "value"), _beyond(), ids=lambda each: str(each)[:20])
def test_a_value_beyond_its_limit_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError) as caught:
        check_limits(SubmittedSettings(**{name: value}))
    assert caught.value.field == name
    assert caught.value.remedy
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def _at_limits() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, limit in LIMITS.items():
        if name == "timeout":  # 0 is no duration
            found.append((name, limit.most))  # type: ignore[union-attr]
        elif isinstance(limit, Number):
            found += [(name, limit.least), (name, limit.most)]
        elif isinstance(limit, Text) and DECLARED[name][1].choices is None:
            found.append((name, "x" * limit.longest))
        elif isinstance(limit, Entries) and name not in ("env", "card_price"):
            found.append((name, ("x",) * limit.most))
    return found


def test_values_at_their_limits_are_taken() -> None:
    for name, value in _at_limits():
        check_limits(SubmittedSettings(**{name: value}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampler": "x" * 5000}, f"sampler={'x' * 60!r}: no sampler has this name; samplers: auto, residual, tpe"),
        ({"timeout": "x" * 5000}, f"timeout={'x' * 60!r}: not a duration; give for example 90s, 45m or 2h"),
        ({"trials": 10**12}, "trials=1000000000000: a service takes 1 to 10,000; lower it"),
        ({"gpus_per_trial": 10**9}, "gpus_per_trial=1000000000: a service takes 1 to 1,024; lower it"),
        ({"learn_from": ["a"] * 50_000}, "learn_from has 50,000 entries, and 20 are the most; leave some out"),
        ({"model": "m" * 5000}, "model has 5,000 characters, and 4,096 are the most; shorten it"),
        ({"timeout": "9999999d"}, "timeout=8.64e+11: a service takes 0 to 31,622,400; lower it"),
        ({"size": True, "trials": 4}, "trials: a study of servers for a load does not depend on it; leave it out"),
        ({"size": True, "space": "vllm"}, "space: a study of servers for a load does not depend on it; leave it out"),
        ({"card": ["l4"]}, "card: a study that tunes, without size, does not depend on it; leave it out"),
        ({"size": True, "spares": -1}, "spares=-1: at least 0 is needed; raise it"),
        ({"size": True, "headroom": 11}, "headroom=11: at most 10 is possible; lower it"),
    ],
)
def test_a_submission_is_refused_with_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"card": ["/etc/passwd"]}, "card"),
        ({"card": ["h100", "cards.yaml"]}, "card"),
        ({"card_price": {"../x": 1.0}}, "card_price"),
        ({"server_arguments": ["--trust-remote-code"]}, "server_arguments"),
        ({"env": {"LD_PRELOAD": "x"}}, "env"),
        ({"model": "/etc"}, "model"),
    ],
)
def test_servers_for_a_load_leave_the_list_as_little_as_a_study_that_tunes(given: dict[str, Any], field: str) -> None:
    check(ServerRules(), size=True, card=["h100", "l4"], card_price={"h100": 2.0})
    with pytest.raises(SettingError) as caught:
        check(ServerRules(), size=True, **given)
    assert caught.value.field == field


def test_no_server_for_a_load_is_measured_on_a_cluster() -> None:
    check(ServerRules(confirms=False), size=True)
    with pytest.raises(SettingError, match="confirm=1: this server's GPUs are a cluster's"):
        check(ServerRules(confirms=False), size=True, confirm=1)


def test_every_shape_of_a_server_is_on_the_list() -> None:
    for name in ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen3-30B-A3B"):
        model = known_model(name)
        assert model is not None
        for shape in shapes_of(model, 8):
            check_words("server_arguments", shape.arguments, NONE)


def test_settings_are_the_keywords_of_optimize_without_the_name() -> None:
    keywords = read_settings({"trials": 12, "slo": ["p99_ttft_ms<500"], "reduce": False}, "s")
    assert (keywords.study, keywords.trials, keywords.slo, keywords.reduce) == ("s", 12, ("p99_ttft_ms<500",), False)
    assert keywords.preset == "qwen2.5-0.5b-t4"
    assert "study" not in names()
    assert {"trials", "slo", "workload", "server_arguments"} <= set(names())


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"trials": "many"}, "trials"),
        ({"slo": "p99_ttft_ms<500"}, "slo"),
        ({"env": {"A": 1}}, "env"),
        ({"nonsense": 1}, "nonsense"),
        ({"storage": "/etc/passwd"}, "storage"),
        ({"vllm": "/bin/sh"}, "vllm"),
        ({"ray_address": "host:1"}, "ray_address"),
        ({"output": "/etc/cron.d/x"}, "output"),
        ({"study": "other"}, "study"),
        ({"space": "x" * (LARGEST_CONTENT + 1)}, "space"),
        ({"workload": ["a: 1", "x" * (LARGEST_CONTENT + 1)]}, "workload"),
    ],
)
def test_what_is_no_setting_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingError) as caught:
        read_settings(given, "s")
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


POISSON = "arrivals: {process: poisson, rate: 1000}\n"
ONE = "classes: {a: {input: 1, output: 1}}\n"
MANY = "classes: {" + ", ".join(f"c{i}: {{input: 1, output: 1}}" for i in range(101)) + "}\n"
PREFIX = "{input: 1, output: 1, prefix: {tokens: 1, documents: 600000}}"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{POISSON}requests: 10000000\n{ONE}", "10,000,000 requests, and 1,000,000"),
        (f"{POISSON}duration_s: 1001\n{ONE}", "1,001,000 requests, and 1,000,000"),
        (
            f"arrivals: {{process: ramp, start_rate: 1, end_rate: 1000}}\nduration_s: 2000\n{ONE}",
            "2,000,000 requests, and 1,000,000",
        ),
        (f"{POISSON}requests: 5\nwarmup_requests: 2000000\n{ONE}", "2,000,000 requests, and 1,000,000"),
        (f"{POISSON}requests: 5\n{MANY}", "101 classes, and 100"),
        (f"{POISSON}requests: 5\nclasses: {{a: {PREFIX}, b: {PREFIX}}}\n", "1,200,000 documents, and 1,000,000"),
    ],
)
def test_too_much_is_refused_with_the_number(tmp_path: Path, text: str, rule: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(SettingError, match=rule) as caught:
        check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),)))
    assert caught.value.field == "workload"


def test_a_rate_of_the_submission_counts(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(f"{POISSON}duration_s: 10\n{ONE}")
    check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),)))
    with pytest.raises(SettingError, match="50,000 requests, and 20,000"):
        check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),), rate=5000.0), 20_000)


def test_the_times_of_a_trace_count(tmp_path: Path) -> None:
    (tmp_path / "times.txt").write_text("0\n1\n2\n")
    (tmp_path / "t.yaml").write_text(f"arrivals: {{process: trace, file: times.txt}}\nwarmup_requests: 0\n{ONE}")
    check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),)), 3)
    with pytest.raises(SettingError, match="3 requests, and 2 are"):
        check_traffic(StudySettings(workload=(str(tmp_path / "t.yaml"),)), 2)


def test_contents_become_files_and_names_stay_names(tmp_path: Path) -> None:
    given = {"workload": ["rate: 1\n", "rate: 2\n"], "space": "small", "quality_task": '{"prompt": "a"}\n'}
    keywords = with_files(read_settings(given, "s"), {}, tmp_path / "contents")
    assert [Path(path).read_text() for path in keywords.workload] == ["rate: 1\n", "rate: 2\n"]
    assert keywords.space == "small"
    assert keywords.quality_task is not None
    assert Path(keywords.quality_task).read_text() == '{"prompt": "a"}\n'
    assert {path.parent for path in map(Path, keywords.workload)} == {tmp_path / "contents"}


def test_a_workload_that_looks_like_a_path_is_a_content(tmp_path: Path) -> None:
    keywords = with_files(read_settings({"workload": ["/etc/passwd"]}, "s"), {}, tmp_path)
    assert Path(keywords.workload[0]).read_text() == "/etc/passwd"


OWN = "arrivals: {process: poisson, rate: 1}\nclasses: {a: {text: {file: prompts.jsonl}}}\n"


def check_given(**given: Any) -> None:
    check_contents(read_settings(given, "s"), files_of(given))


def test_a_traffic_file_may_refer_to_the_submissions_own_files(tmp_path: Path) -> None:
    given = {"workload": [OWN], "files": {"prompts.jsonl": '{"prompt": "a"}\n'}}
    check_given(**given)
    keywords = with_files(read_settings(given, "s"), files_of(given), tmp_path)
    assert (Path(keywords.workload[0]).parent / "prompts.jsonl").read_text() == '{"prompt": "a"}\n'


@pytest.mark.parametrize("name", ["/etc/passwd", "../driver.log", "other.jsonl", "prompts.jsonl/../x"])
def test_no_content_reads_a_file_of_the_server(name: str) -> None:
    files = {"prompts.jsonl": "{}\n"}
    with pytest.raises(SettingError, match="not one of the submission's files"):
        check_given(workload=[OWN.replace("prompts.jsonl", f"'{name}'")], files=files)
    with pytest.raises(SettingError, match="not one of the submission's files"):
        check_given(space=f"include: ['{name}']\nparameters: {{}}\n")
    with pytest.raises(SettingError, match="not one of the submission's files"):
        check_given(files={"a.yaml": f"x: [[{{file: '{name}'}}]]\n"})


def test_an_included_file_includes_none_of_the_servers_whatever_its_name() -> None:
    files = {"a.txt": "include: [b.data]\n", "b.data": "include: [/etc/passwd]\n"}
    with pytest.raises(SettingError, match="'/etc/passwd' is not one of the submission's files"):
        check_given(space="include: [a.txt]\nparameters: {}\n", files=files)


def test_files_that_include_each_other_end() -> None:
    check_given(space="include: [a.txt]\nparameters: {}\n", files={"a.txt": "include: [a.txt]\n"})


def test_errors_in_contents_do_not_name_the_folder_of_the_server() -> None:
    keywords = read_settings({"space": "parameters: 7\n"}, "s")
    with pytest.raises(UserError) as caught, read_only(keywords, {}) as own:
        raise UserError(f"{own.space}:1: parameters: not valid")
    assert str(caught.value) == "space.yaml:1: parameters: not valid"
    with pytest.raises(SettingError) as setting, read_only(keywords, {}) as own:
        raise SettingError("space", own.space, f"{own.space} is not valid", f"see {own.space}")
    assert str(setting.value) == "space='space.yaml': space.yaml is not valid; see space.yaml"


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "a b", "x" * 101, "a\nb", "/a"])
def test_a_file_has_a_plain_name(name: str) -> None:
    with pytest.raises(SettingError) as caught:
        files_of({"files": {name: "x"}})
    assert caught.value.field == "files"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("files", [[], "x", {"a": 1}, {"a": "x" * 1_000_001}, {str(i): "" for i in range(21)}])
def test_files_are_a_few_texts(files: Any) -> None:
    with pytest.raises(SettingError):
        files_of({"files": files})


def test_a_content_that_is_no_yaml_is_named() -> None:
    with pytest.raises(SettingError) as caught:
        check_given(workload=["a: [1"])
    assert caught.value.field == "workload"
