"""The model zoo, one file per family; importing this package registers them."""
