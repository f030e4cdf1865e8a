"""Can this number be trusted? `checks/` looks for gradient masking, `kinds/` declares what a suite can ask for."""
