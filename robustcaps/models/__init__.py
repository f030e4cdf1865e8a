"""The model zoo, one module per family; importing this package registers the models."""

from robustcaps.models import cnn, matrix_capsnet, vector_capsnet

__all__ = ["cnn", "matrix_capsnet", "vector_capsnet"]
