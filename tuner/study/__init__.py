"""Studies: settings and specification, the search loop, the sources of trials, and the conclusion."""
