"""`python -m robustcaps` does what `robustcaps` does."""

from robustcaps.cli import main

main()
