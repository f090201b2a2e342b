"""Models by name, and the BatchNorm that replaces theirs."""
