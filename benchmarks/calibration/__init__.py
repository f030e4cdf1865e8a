"""How far verdicts can be believed: models whose label is known and proven, and how many of them are judged right."""
