"""Problems that are formulas with known optima; nothing is measured or simulated."""
