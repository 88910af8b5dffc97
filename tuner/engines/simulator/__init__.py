"""vLLM simulated, step by step, on a simulated card.

The decisions that shape it:

- It is an `Engine` like the real one: the same pipeline, sampler, database, MLflow and exporter; only its provenance
  differs, `simulated`, and goes with every number. It reads the very flags of `vllm serve`.
- The grain is an engine step on a virtual clock. What a step holds is decided by vLLM V1's scheduler (`scheduler`), on
  its paged KV cache (`blocks`); how long it takes by a roofline with launches and host work (`step_time`).
- Everything that is fitted is one number with a meaning and a unit in `parameters.yaml`, with its source;
  `benchmarks/simulator/calibrate.py` makes that file. What is assumed of repetitive text stands in `speculation`.
- Decoding sequences advance together: all get one token a step, so a step costs the same work however many there are,
  and only what changes (an arrival, a prefill, an end, a lack of blocks) is looked at. Speculation, where each sequence
  gets its own number of tokens, is the exception (`speculation`).
- Randomness is noise of the measurement and acceptance of drafts, both from the load's seed: the same study in another
  process gives the same figures.
"""
