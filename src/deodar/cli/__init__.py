"""The `deodar` command: the only place that wires rooms together and the only one that prints."""
