"""One module per command of `speedyfeed`."""
