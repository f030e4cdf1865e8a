"""Minimum-norm attacks: they search for the smallest successful perturbation."""
