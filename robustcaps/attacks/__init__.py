"""The attacks, one file per family; importing this package registers them."""
