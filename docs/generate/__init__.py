"""Makes the tables of the manual and the figures of the README from the code and from results/."""
