"""What the service stores of optimizations: studies whose trials the clients run."""
