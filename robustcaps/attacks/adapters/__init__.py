"""The attacks of torchattacks and foolbox under our budgets, goals, seeds and guard; imported only when asked for."""
