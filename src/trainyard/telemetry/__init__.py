"""What a run reports while it runs: metrics, progress, goodput, stragglers and hangs."""
