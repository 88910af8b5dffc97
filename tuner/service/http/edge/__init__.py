"""The edge that every request and every answer passes: limits, headers, and the description of the API."""
