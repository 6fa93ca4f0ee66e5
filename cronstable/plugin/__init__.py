"""The plugin contracts (descriptors, protocols, hooks) and the machinery that finds plugins."""
