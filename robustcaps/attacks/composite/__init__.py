"""Attacks that run other attacks: the worst case over several, and bisection over eps."""
