"""White-box attacks that follow the gradient of a loss inside a fixed ball."""
