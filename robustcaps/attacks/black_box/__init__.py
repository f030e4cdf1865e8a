"""Black-box attacks: they use the outputs of the attacked model or surrogate models, but no gradients of it."""
