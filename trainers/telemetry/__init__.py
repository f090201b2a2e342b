"""What a run tells while it runs: metrics, progress, where its seconds go, and hangs."""
