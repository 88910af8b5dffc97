"""Start, await, measure and stop servers, and type their failures: the part that all engines share."""
