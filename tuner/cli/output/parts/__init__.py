"""Parts of pages and of the progress: numbers, configurations, and tables."""
