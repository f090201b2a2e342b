"""Models by name, and the BatchNorm that all of them get."""
