"""Reports of a run while it runs: metrics, progress, goodput, stragglers and hangs."""
