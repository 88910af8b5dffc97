"""From records of requests to statistics and named metrics of a run."""
