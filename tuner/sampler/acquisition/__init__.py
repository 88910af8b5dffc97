"""The acquisition function and its maximisation: candidates, expected improvement, local search."""
