"""The model zoo, one file per family; importing this package registers them."""

from robustcaps.models import cnn, matrix_capsnet, vector_capsnet

__all__ = ["cnn", "matrix_capsnet", "vector_capsnet"]
