"""`ResidualSampler`, an Optuna sampler; imports Optuna and numeric libraries, and nothing else of this project.

- `residual`: the sampler.
- `surrogate`: Gaussian processes (`gaussian_process`) of score, constraints and failures.
- `acquisition`: the acquisition function and its maximum, over `candidates`.
- `prior`: predictions as the prior mean, computed in the `background`.
- `transfer`: warm start from source studies.
- `flag_effects`: the effect and the importance of each parameter.

docs/design/sampler.md describes the method, and docs/examples/residual_sampler.py shows the sampler in a plain Optuna
study.
"""
