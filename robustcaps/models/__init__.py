"""The model zoo, one module per family; importing this package registers the models."""

from robustcaps.models import cnn, efficient_capsnet, matrix_capsnet, routed_capsnet, vector_capsnet

__all__ = ["cnn", "efficient_capsnet", "matrix_capsnet", "routed_capsnet", "vector_capsnet"]
