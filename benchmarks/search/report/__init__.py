"""From searches to figures, printed tables, JSON files and a plot."""
