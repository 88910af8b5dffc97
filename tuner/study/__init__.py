"""The study: what it is, what it learns, how it goes on, and how it ends."""
