"""Attacks on properties of capsule networks: routing and reconstruction."""
