"""One module per kind of engine: from a request to the objects that make its pods."""
