"""Diagnostics of models: gradient masking (`checks/`), gradients, detection, viewpoints and overlapping digits.

`kinds/` declares the diagnostics that a suite can request.
"""
