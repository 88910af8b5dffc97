"""Nested keys and lists in a flag's JSON object."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import Context, ParameterValue, ResolvedSpace, SpaceError, hardware_named, load_space
from search_spaces.argv import conflicting_keys, value_at

TEXT = """\
parameters:
  graphs:
    description: graphs
    type: categorical
    choices: [null, NONE, FULL]
    json: {flag: --compilation-config, key: cudagraph_mode}
  norm:
    description: a pass
    type: categorical
    choices: [null, true, false]
    json: {flag: --compilation-config, key: pass_config.fuse_norm_quant}
  act:
    description: another pass
    type: categorical
    choices: [null, true, {value: both, json: {pass_config.fuse_act_quant: true, "custom_ops[]": +quant_fp8}}]
    json: {flag: --compilation-config, key: pass_config.fuse_act_quant}
  ops:
    description: a kernel
    type: categorical
    choices: [null, +rms_norm, +quant_fp8]
    json: {flag: --compilation-config, key: "custom_ops[]"}
  sizes:
    description: sizes
    type: categorical
    choices: [null, {value: few, args: [--cudagraph-capture-sizes, "1", "2"]}]
"""


def space(tmp_path: Path, *base: str, text: str = TEXT) -> ResolvedSpace:
    file = tmp_path / "nested.yaml"
    file.write_text(text)
    return load_space(file).resolve(Context(hardware_named("h200"), base_argv=base))


@pytest.mark.parametrize(
    ("config", "content"),
    [
        ({"graphs": "NONE"}, '{"cudagraph_mode":"NONE"}'),
        ({"norm": False}, '{"pass_config":{"fuse_norm_quant":false}}'),
        (
            {"graphs": "FULL", "norm": True, "act": True, "ops": "+rms_norm"},
            '{"cudagraph_mode":"FULL","custom_ops":["+rms_norm"],'
            '"pass_config":{"fuse_act_quant":true,"fuse_norm_quant":true}}',
        ),
        (
            {"act": "both", "ops": "+rms_norm"},
            '{"custom_ops":["+quant_fp8","+rms_norm"],"pass_config":{"fuse_act_quant":true}}',
        ),
        ({"act": "both", "ops": "+quant_fp8"}, '{"custom_ops":["+quant_fp8"],"pass_config":{"fuse_act_quant":true}}'),
    ],
)
def test_keys_of_one_flag_make_one_object(tmp_path: Path, config: dict[str, ParameterValue], content: str) -> None:
    assert space(tmp_path).render(config).argv == ("--compilation-config", content)


def test_capture_sizes_stand_beside_the_object(tmp_path: Path) -> None:
    assert space(tmp_path).render({"norm": True, "sizes": "few"}).argv == (
        *("--cudagraph-capture-sizes", "1", "2"),
        *("--compilation-config", '{"pass_config":{"fuse_norm_quant":true}}'),
    )


def test_the_study_s_own_object_sets_nested_keys(tmp_path: Path) -> None:
    given = '{"pass_config": {"fuse_norm_quant": true}, "custom_ops": ["none", "+quant_fp8"]}'
    fixed = space(tmp_path, "--compilation-config", given).fixed
    assert fixed == {"graphs": None, "norm": True, "act": None, "ops": "+quant_fp8"}
    assert space(tmp_path, "--compilation-config", '{"custom_ops": "none", "pass_config": 1}').fixed == {
        "graphs": None,
        "norm": None,
        "act": None,
        "ops": None,
    }


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "pass_config",
            "keys 'pass_config' and 'pass_config.fuse_norm_quant' of --compilation-config exclude each other",
        ),
        ("custom_ops", "keys 'custom_ops' and 'custom_ops[]' of --compilation-config exclude each other"),
        ("pass_config.", "String should match pattern"),
        ("[]", "String should match pattern"),
        ("a[].b", "String should match pattern"),
    ],
)
def test_keys_that_exclude_each_other_are_refused(tmp_path: Path, key: str, message: str) -> None:
    with pytest.raises(SpaceError) as caught:
        space(tmp_path, text=TEXT.replace("key: cudagraph_mode", f'key: "{key}"'))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_helpers() -> None:
    assert conflicting_keys(["a.b", "a.c", "ab", "d[]"]) is None
    assert conflicting_keys(["a.b.c", "a.b"]) == ("a.b", "a.b.c")
    assert conflicting_keys(["a[]", "a.b"]) == ("a[]", "a.b")
    assert value_at({"a": {"b": 1}}, "a.b") == 1
    assert value_at({"a": 1}, "a.b") is None
    assert value_at({"a": [1]}, "a[]") == [1]
    assert value_at({"a": 1}, "a[]") is None
