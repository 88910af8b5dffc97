"""`ResidualSampler`, an Optuna sampler; imports Optuna and numeric libraries, and nothing else of this project.

- `residual`: the sampler.
- `surrogate/`: Gaussian processes of score, constraints and failures.
- `acquisition/`: candidates and the acquisition function.
- `prior/`: predictions as the prior mean.
- `transfer`: warm start from source studies.
- `flag_effects`: the effect of each parameter of a configuration.
- `convergence`: when a search has converged.

docs/design/sampler.md describes the method, docs/design/sampler-constants.md the constants, and
docs/examples/residual_sampler.py shows the sampler in a plain Optuna study.
"""
