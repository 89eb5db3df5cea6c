"""Routes of the service by kind: read, write, state, and the files of the page."""
