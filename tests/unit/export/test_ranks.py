"""The script of a server over two nodes: each node starts its rank, and the other formats refuse it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.export.test_serve_script import run, started_with
from tuner.errors import SettingError
from tuner.export.formats.registry import FORMATS, write_deployment
from tuner.testing.exporter import a_script, deployment

RANKED = (
    *("--pipeline-parallel-size", "2", "--nnodes", "2", "--node-rank", "0"),
    *("--master-addr", "10.0.0.7", "--master-port", "31000", "--data-parallel-rpc-port", "31001"),
)
OWN = ["serve", "org/model", "--pipeline-parallel-size", "2", "--nnodes", "2", "--node-rank"]
LISTENS = ["--host", "127.0.0.1", "--port", "8000"]


@pytest.mark.parametrize(
    ("rank", "given", "meets"),
    [
        ("0", {}, ["0", "--master-addr", "10.1.0.1", "--master-port", "29501"]),
        ("1", {"MASTER_PORT": "4000"}, ["1", "--master-addr", "10.1.0.1", "--master-port", "4000", "--headless"]),
    ],
)
def test_each_node_starts_its_rank(rank: str, given: dict[str, str], meets: list[str], tmp_path: Path) -> None:
    done = run(a_script(argv=RANKED), tmp_path, NODE_RANK=rank, MASTER_ADDR="10.1.0.1", **given)
    assert done.returncode == 0, done.stderr
    assert started_with(tmp_path)[0] == [*OWN, *meets, *LISTENS]


@pytest.mark.parametrize("flag", [("--api-server-count", "2"), ("--api-server-count=2",)])
def test_a_rank_without_an_api_server_gets_no_flags_of_one(flag: tuple[str, ...], tmp_path: Path) -> None:
    script = a_script(argv=(*flag, *RANKED, "--max-num-seqs", "a b"))
    for rank, expected in (("0", flag), ("1", ())):
        done = run(script, tmp_path, NODE_RANK=rank, MASTER_ADDR="10.1.0.1")
        assert done.returncode == 0, done.stderr
        words = ["serve", "org/model", *expected, "--pipeline-parallel-size", "2", "--max-num-seqs", "a b"]
        assert started_with(tmp_path)[0][: len(words)] == words


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"NODE_RANK": "0"},
        {"MASTER_ADDR": "10.1.0.1"},
        {"NODE_RANK": "2", "MASTER_ADDR": "10.1.0.1"},
        {"NODE_RANK": "a[1]", "MASTER_ADDR": "10.1.0.1"},
    ],
)
def test_a_start_without_a_rank_is_refused(given: dict[str, str], tmp_path: Path) -> None:
    done = run(a_script(argv=RANKED), tmp_path, **given)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "best_serve.sh: the server runs on 2 nodes; start this on each, with NODE_RANK=0 to 1, "
        "and MASTER_ADDR=address of rank 0\n"
    )


def test_only_rank_0_verifies(tmp_path: Path) -> None:
    done = run(a_script(argv=RANKED), tmp_path, "--verify", NODE_RANK="1", MASTER_ADDR="10.1.0.1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--verify runs on the node of rank 0" in done.stderr


def test_the_usage_needs_no_rank(tmp_path: Path) -> None:
    assert run(a_script(argv=RANKED), tmp_path, "--help").returncode == 0


@pytest.mark.parametrize("name", FORMATS)
def test_other_formats_refuse_several_nodes(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="for one machine only, and the server of this trial ran on 2"):
        write_deployment(FORMATS[name], deployment(argv=RANKED), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
