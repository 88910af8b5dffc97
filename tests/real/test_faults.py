"""kill -9 of the tuner while a real vLLM server answers: the same command ends that server and resumes the study."""

from pathlib import Path

import pytest

from tests.faults.command import Study

pytestmark = pytest.mark.release

TRIALS = 2
ARGUMENTS = (
    *("--trials", str(TRIALS), "--space", "cpu", "--only", "max_num_seqs", "--baseline-repeats", "1"),
    *("--confirm-rounds", "0", "--users", "4", "--prompts", "16", "--input-len", "64", "--output-len", "64"),
    *("--env", "VLLM_CPU_KVCACHE_SPACE=1", "--env", "HF_HUB_OFFLINE=1"),
    *("--", "--load-format", "dummy", "--max-model-len", "1024", "--enforce-eager"),
)


def test_kill_9_of_the_driver_in_mid_trial(vllm: Path, tiny_model: Path, home: Path, tmp_path: Path) -> None:
    study = Study(tmp_path, vllm, tiny_model, ARGUMENTS, TUNER_HOME=str(home))
    try:
        first = study.start()
        server = study.benchmarked_server("0", first)
        first.kill()
        assert study.finished() == {}
        assert server.process in study.running()
        assert len(server.members) >= 1, "vLLM's engine is a process of its own and in the record"
        assert set(server.members) <= first.descendants_seen

        again = study.start()
        assert again.wait() == 0, again.output()
        records = study.finished()
        assert [(key, record.state != "failed") for key, record in sorted(records.items())] == [
            ((0, 0), True),
            ((1, 0), True),
        ]
        assert [records[(number, 0)].attempts for number in range(TRIALS)] == [2, 1]
        assert study.mlflow_problems() == []
        assert study.leftovers() == []
    finally:
        study.close()
