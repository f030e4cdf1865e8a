"""`python -m robustcaps` does what `robustcaps` does."""

from robustcaps.cli.app import main

main()
