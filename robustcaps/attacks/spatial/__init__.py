"""Attacks that move the object instead of its pixels: affine maps of the image, and other viewpoints."""
