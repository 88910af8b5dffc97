"""The load generator beside other clients."""
