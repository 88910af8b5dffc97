"""Run a simulated study from Python and read its result. With a GPU, leave out `engine` and `gpu` to measure."""

import tuner

study = tuner.optimize(
    study="example",
    engine="simulated",
    gpu="t4",
    max_concurrency=16,
    num_prompts=100,
    slo=["p99_ttft_ms<1500", "success_rate>=1"],
    objective=["output_throughput", "p99_tpot_ms"],
    trials=6,
)

conclusion, best = study.conclusion, study.best
assert conclusion is not None
assert best is not None
print(f"{study.name}: {conclusion['reason']} ({best.provenance})")
print(f"recommended: trial {best.number}, {dict(best.config) or 'the defaults'}")
print(f"output throughput: {best.metrics['output_throughput']:.0f} tokens/s")

frame = study.trials_dataframe()
print(frame[["number", "round", "state", "score"]].head())
print(f"wrote {study.export('serve_example.sh')}")
