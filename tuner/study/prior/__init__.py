"""What the sampler has before the first trial: the simulator's predictions and the trials of source studies."""
