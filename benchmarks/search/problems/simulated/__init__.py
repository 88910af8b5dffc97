"""Problems whose measurements come from the simulator with perturbed parameters."""
