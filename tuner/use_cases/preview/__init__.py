"""What is known before anything runs: presets, the search space on a card, and the predicted defaults."""
