"""Check the files of a model's folder: a server that lacks one ends minutes after its start, on its GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from search_spaces import SpaceError
from search_spaces.argv import one_spelling
from search_spaces.catalogue.models import read_object
from tuner.errors import SettingError, reason_of

_FORMATS = ("auto", "safetensors")
"""Values of `--load-format` with which the servers read the files of a folder as they are."""
_SAFETENSORS, _INDEX = "*.safetensors", "model.safetensors.index.json"
_OTHERS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.engine")
_TOKENIZERS = ("tokenizer*", "vocab*", "tekken*", "*.tiktoken", "*.model", "*.gguf")
_OWN_TOKENIZER = {"--tokenizer", "--tokenizer-path", "--skip-tokenizer-init"}
_POINTER = b"version https://git-lfs"
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, a little-endian number."""
_MOST_HEADER_BYTES = 100_000_000
"""The format's own limit of a header."""


def check_model_files(field: str, name: str, arguments: Sequence[str], *, tokenizer: bool = True) -> None:
    """Refuse a model's folder whose weights or tokenizer are missing or cut off; a hub name is not looked at.

    Args:
        field: the setting that names the model.
        name: a folder, or a name on the hub.
        arguments: of the server; those that draw the weights or load them in another way are not checked.
        tokenizer: whether the model needs one; a draft model does not.

    Raises:
        SettingError: with the first file that is wrong.
    """
    folder, words = Path(name), one_spelling(arguments)
    formats = [after for word, after in pairwise(words) if word.replace("_", "-").endswith("load-format")]
    if not folder.is_dir() or any(each not in _FORMATS for each in formats):
        return
    needs_tokenizer = tokenizer and not _OWN_TOKENIZER & {*words}
    try:
        wrong = _wrong_weights(folder) or (_wrong_tokenizer(folder) if needs_tokenizer else None)
    except SpaceError as error:
        wrong = str(error)
    except OSError as error:
        wrong = f"its files cannot be read ({reason_of(error)})"
    if wrong is not None:
        remedy = "download the model again with `hf download`, or draw random weights by `-- --load-format dummy`"
        raise SettingError(field, name, wrong, remedy)


def _wrong_weights(folder: Path) -> str | None:
    index = folder / _INDEX
    if index.is_file():
        names = read_object(index).get("weight_map")
        files = [folder / each for each in sorted({*map(str, names.values())})] if isinstance(names, dict) else []
        missing = [each.name for each in files if not each.is_file()]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            return f"{_INDEX} names {missing[0]}{more}, and the folder lacks it"
    else:
        files = _files(folder, _SAFETENSORS)
    files = files or _files(folder, *_OTHERS)
    if not files:
        return "the folder has no weights, such as *.safetensors"
    return next((wrong for each in files if (wrong := _wrong_file(each))), None)


def _wrong_tokenizer(folder: Path) -> str | None:
    files = _files(folder, *_TOKENIZERS)
    if not files:
        return "the folder has no tokenizer, such as tokenizer.json"
    return next((wrong for each in files if (wrong := _wrong_file(each))), None)


def _files(folder: Path, *patterns: str) -> list[Path]:
    return sorted(each for pattern in patterns for each in folder.glob(pattern) if each.is_file())


def _wrong_file(file: Path) -> str | None:
    with file.open("rb") as opened:
        start = opened.read(len(_POINTER))
        if start == _POINTER:
            return f"{file.name} is a pointer of Git LFS and not the file"
        if file.suffix == ".safetensors" and _is_cut(file, int.from_bytes(start[:_LENGTH_BYTES], "little")):
            return f"{file.name} is cut off or broken"
    return None


def _is_cut(file: Path, header: int) -> bool:
    """Return whether a safetensors file is shorter than its header says, or has no header."""
    size = file.stat().st_size - _LENGTH_BYTES
    if header > min(size, _MOST_HEADER_BYTES):
        return True
    with file.open("rb") as opened:
        opened.seek(_LENGTH_BYTES)
        content = opened.read(header)
    try:
        tensors = {name: each for name, each in json.loads(content).items() if name != "__metadata__"}
        return max((each["data_offsets"][1] for each in tensors.values()), default=0) > size - header
    except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError):
        return True
