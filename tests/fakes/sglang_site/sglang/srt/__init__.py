"""The part of the fake that has its own parser."""
