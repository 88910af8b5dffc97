"""The kernel priors of all Gaussian processes of the sampler. Reasons: docs/design/sampler-constants.md.

Targets are relative: a gain or a compressed violation of 0.2 is a fifth.
"""

from tuner.sampler.surrogate.gaussian_process import KernelPrior

WITH_PRIOR = KernelPrior(amplitude=0.15, effects=0.2, noise=0.03, constant=0.3, slope=0.3, slope_limit=1.0)
"""Score and constraints, where a simulator prior predicts them."""
WITHOUT_PRIOR = KernelPrior(amplitude=0.3, effects=0.4, noise=0.03, constant=0.3)
"""Score and constraints, where nothing is predicted."""
OF_SOURCES = KernelPrior(amplitude=0.3, effects=0.4, noise=0.03, constant=0.1)
"""Gains and constraints of source studies."""
OF_FAILURES = KernelPrior(amplitude=0.4, effects=0.2, noise=0.1, constant=0.1, slope=0.5)
"""Failures, which are 1, and successes, which are 0."""
FAILURE_ITERATIONS = 10
"""Iterations of L-BFGS at most for a process of failures."""
