"""Where the trials of a study come from: the search, the ablation and the confirmation rounds."""
