"""An attack, a model, a dataset and a diagnostic for robustcaps."""
