"""The report of studies: one HTML file without a network, to pass on."""
