"""Reports of searches: figures, printed tables, JSON files and a plot."""
