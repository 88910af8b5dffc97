import pytest

from tuner.export.deployment import Argument, arguments_of
from tuner.testing.exporter import deployment


def test_words_are_grouped_as_argparse_does() -> None:
    words = ["a", "--x", "1", "two words", "--y=b=c", "-cc.mode=3", "-O3", "--n", "-5", "-", "- x", "--z="]
    assert arguments_of(words) == (
        Argument("", ("a",)),
        Argument("--x", ("1", "two words")),
        Argument("--y", ("b=c",)),
        Argument("-cc.mode", ("3",)),
        Argument("-O3"),
        Argument("--n", ("-5", "-", "- x")),
        Argument("--z", ("",)),
    )


def test_gpus_are_those_of_all_kinds_of_parallelism() -> None:
    assert deployment(argv=()).gpus == 1
    assert deployment(argv=("-tp", "4", "--data_parallel_size=2")).gpus == 8
    assert deployment(argv=("--tensor-parallel-size", "two")).gpus == 1
    assert deployment(argv=("-tp", "4"), device="cpu").gpus == 0


@pytest.mark.parametrize("device", ["NVIDIA L4", "2 × NVIDIA L4", "2 nodes of NVIDIA L4", "2 nodes of 4 × NVIDIA L4"])
def test_the_card_is_one_of_several(device: str) -> None:
    assert deployment(device=device).script.card == "NVIDIA L4"


def test_flags_exclude_model_and_name() -> None:
    made = deployment(model="/m", served_name="--odd", argv=("--max-num-seqs", "8"))
    assert made.words == ("/m", "--served-model-name", "--odd", "--max-num-seqs", "8")
    assert made.flag_words == ("--max-num-seqs", "8")
    assert made.model_folder == "/m"
    assert deployment(model="m").model_folder is None


def test_the_version_has_no_local_part() -> None:
    assert deployment(vllm_version="0.32.0+cpu").vllm_version == "0.32.0"
