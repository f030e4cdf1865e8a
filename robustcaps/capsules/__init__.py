"""What a capsule is: routing (pure functions; the definition), layers (nn.Module) and losses."""
