"""Cells in a process of their own: what a plugin does to it (exit, crash, hang, flood) is done to its cell only."""
