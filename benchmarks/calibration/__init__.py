"""Calibration of the verdicts: how many models with a known, proven label are diagnosed correctly."""
