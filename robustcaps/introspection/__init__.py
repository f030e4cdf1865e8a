"""Looking inside capsule networks: what routing does to votes, and what a capsule's dimensions mean."""
