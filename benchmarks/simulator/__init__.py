"""Accuracy, calibration and speed of the simulator."""
