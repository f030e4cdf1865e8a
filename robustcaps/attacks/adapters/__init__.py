"""Adapters for the attacks of torchattacks and foolbox; imported only when one of them is used."""
