"""The files of the web page: HTML, CSS and ES modules, which browsers run as they are."""
