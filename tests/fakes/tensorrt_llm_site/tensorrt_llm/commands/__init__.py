"""The commands of the fake package."""
