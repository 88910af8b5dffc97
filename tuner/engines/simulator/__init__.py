"""A simulated engine: vLLM on a simulated card, step by step, on a virtual clock.

It implements `Engine` and reads the same flags as `vllm serve`, so that pipeline, sampler, database, MLflow and
exporter do not differ. Its provenance, `simulated`, goes with every number. `docs/simulator.md` describes the model.

- `engine`: `Engine` and `Server` on a virtual clock; `prediction`: one configuration in one call, without a clock.
- `flags`, `serve_config`, `limits`, `precision`, `cuda_graphs`: flags, defaults and refusals of `vllm serve`.
- `memory`, `block_pool`: the division of the card's memory, and the paged KV cache.
- `scheduler`, `sequence`: vLLM V1's scheduler, which decides what each engine step computes.
- `step_time`, `attention_time`, `startup`, `roofline`: a roofline model of a step's time, start-up and the API servers.
- `client`, `metrics`: the workload's requests, and the metrics of the answers.
- `deployment`, `replica`: one workload against one server, or several, event by event.
- `parameters`: all free parameters with units, meanings and sources; `benchmarks/simulator/calibrate.py` fits them.

Random numbers are used for the noise between runs and for the acceptance of drafts. Both come from the workload's seed:
the same study in another process gives the same numbers.
"""
