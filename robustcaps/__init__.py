"""robustcaps: how robust are capsule networks against adversarial attacks, honestly."""
