"""Which models there are: the catalogue of files and pairs."""
