"""The web page: its files, and the routes that only it needs."""
