"""One trial: its phases from check to stop, and the search for the capacity."""
