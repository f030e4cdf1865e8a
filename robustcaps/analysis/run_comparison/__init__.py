"""What changed between two runs: settings, versions and, on the same samples, robust accuracy."""

from robustcaps.analysis.run_comparison.comparison import RunComparison, compare

__all__ = ["RunComparison", "compare"]
