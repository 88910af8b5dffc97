"""The problems that samplers are compared on."""
