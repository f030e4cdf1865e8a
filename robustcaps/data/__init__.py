"""The datasets, one file each; importing this package registers them."""
