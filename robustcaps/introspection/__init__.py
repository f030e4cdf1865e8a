"""What routing does to votes and what the dimensions of a capsule encode, as data and as figures."""
