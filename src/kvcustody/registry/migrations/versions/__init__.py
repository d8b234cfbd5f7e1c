"""One module for each change of the registry's tables."""
