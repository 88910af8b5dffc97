"""The recorded tables of this repository.

The simulator's parameters are fitted to the rows of `h200-a05` and `h200-b7`. Its predictions are better there than
elsewhere, so compare with `--prior none`. It is not fitted to `h200-study` and `h200-7b-study`; the residual sampler
chose the rows of the latter.
"""

from pathlib import Path

from benchmarks.search.problems.tables.problem import Table
from benchmarks.simulator.rows import REFERENCE_FOLDER
from records.trials import Config

STUDY_FOLDER = Path(__file__).parents[4] / "docs" / "reports" / "data"
H200_DEFAULTS: Config = {
    **{"max_num_seqs": 1024, "max_num_batched_tokens": 8192, "max_model_len": 32768, "block_size": 16},
    **{"cudagraph_mode": "FULL_AND_PIECEWISE", "capture_max": 512, "prefix_caching": True, "async_scheduling": True},
    **{"stream_interval": 1, "api_server_count": 1, "kv_cache_dtype": "auto", "optimization_level": 2},
}
"""The values that vLLM 0.25.1 chooses on an H200 without flags."""
STUDY_DEFAULTS: Config = {
    **{name: H200_DEFAULTS[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")},
    **{name: H200_DEFAULTS[name] for name in ("prefix_caching", "stream_interval", "api_server_count")},
    **{"optimization_level": 2, "capture_size_max": 512, "gpu_memory_utilization": 0.92, "speculative": "off"},
}
"""The same values under the parameter names of the H200 studies' search space."""
THREE_OBJECTIVES = ("output_throughput", "p99_tpot_ms", "p99_ttft_ms")
STUDY_SLOS = ("p99_tpot_ms<50", "p99_ttft_ms<2000", "success_rate>=1")
NOT_SPECULATIVE: Config = {"speculative": "off"}


def recorded_tables() -> dict[str, Table]:
    """Return the tables by name."""
    reference, studies = REFERENCE_FOLDER, STUDY_FOLDER
    tables = [
        Table("h200-a05", reference / "h200_a05.jsonl", ("output_throughput",), hints=H200_DEFAULTS),
        Table("h200-b7", reference / "h200_b7.jsonl", THREE_OBJECTIVES, hints=H200_DEFAULTS),
        Table("h200-study", studies / "h200.csv", THREE_OBJECTIVES, STUDY_SLOS, STUDY_DEFAULTS),
        Table("h200-7b-study", studies / "h200-7b.csv", THREE_OBJECTIVES, hints=STUDY_DEFAULTS),
        Table("temperature-0", studies / "temperature-0.csv", THREE_OBJECTIVES, STUDY_SLOS, NOT_SPECULATIVE),
        Table("temperature-1", studies / "temperature-1.csv", THREE_OBJECTIVES, STUDY_SLOS, NOT_SPECULATIVE),
    ]
    return {table.name: table for table in tables}
