"""Evaluation of cells in a subprocess: a plugin that exits, crashes, hangs or floods fails only its own cell."""
