"""What a model's folder lacks is said before a server starts; the files are those of a half-finished download."""

import json
from pathlib import Path

import pytest

from tuner.errors import SettingError
from tuner.study.specification.model_files import check_model_files

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
HEADER = json.dumps({"__metadata__": {"format": "pt"}, "lm_head.weight": {"data_offsets": [0, 16]}}).encode()
WHOLE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(16)
INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()


def folder(path: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (path / name).write_bytes(content)
    return str(path)


SOUND = {"model.safetensors": WHOLE, "tokenizer.json": b"{}"}


@pytest.mark.parametrize(
    ("files", "wrong"),
    [
        ({"tokenizer.json": b"{}"}, r"the folder has no weights, such as \*\.safetensors; download the model again"),
        ({"model.safetensors.index.json": INDEX, "model-1.safetensors": WHOLE}, "names model-2.safetensors, and the"),
        ({"model.safetensors.index.json": INDEX}, "names model-1.safetensors and 1 more, and the folder lacks it"),
        ({"model.safetensors.index.json": b"{"}, "model.safetensors.index.json is not valid JSON"),
        ({**SOUND, "model.safetensors": POINTER}, "model.safetensors is a pointer of Git LFS"),
        ({**SOUND, "model.safetensors": WHOLE[:-1]}, "model.safetensors is cut off or broken"),
        ({**SOUND, "model.safetensors": b""}, "model.safetensors is cut off or broken"),
        ({**SOUND, "model.safetensors": b"<html>" + bytes(40)}, "model.safetensors is cut off or broken"),
        ({"pytorch_model.bin": POINTER}, "pytorch_model.bin is a pointer of Git LFS"),
        ({"model.safetensors": WHOLE}, "the folder has no tokenizer, such as tokenizer.json"),
        ({**SOUND, "tokenizer.json": POINTER}, "tokenizer.json is a pointer of Git LFS"),
    ],
)
def test_a_folder_that_no_server_loads_is_refused(tmp_path: Path, files: dict[str, bytes], wrong: str) -> None:
    with pytest.raises(SettingError, match=wrong):
        check_model_files("model", folder(tmp_path, files), ())


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        (SOUND, ()),
        ({**SOUND, "pytorch_model.bin": POINTER}, ("--load-format", "auto")),  # the servers read safetensors first
        ({**SOUND, "model-2.safetensors": WHOLE, "model-1.safetensors": WHOLE}, ()),
        ({"model.gguf": b"GGUF"}, ()),
        ({"model.safetensors": WHOLE}, ("--tokenizer", "a/b")),
        ({}, ("--load-format=dummy",)),
        ({}, ("--load_format", "tensorizer")),
        ({}, ("--config.load_format", "dummy")),  # TensorRT-LLM's
    ],
)
def test_a_folder_that_a_server_may_load_is_taken(
    tmp_path: Path, files: dict[str, bytes], arguments: tuple[str, ...]
) -> None:
    check_model_files("model", folder(tmp_path, files), arguments)


def test_a_draft_model_needs_no_tokenizer_and_a_hub_name_is_not_looked_at(tmp_path: Path) -> None:
    check_model_files("draft_model", folder(tmp_path, {"model.safetensors": WHOLE}), (), tokenizer=False)
    check_model_files("model", "Qwen/Qwen3-8B", ())
