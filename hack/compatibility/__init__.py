"""What it works with: docs/compatibility.md from what ran and from what is known (python -m hack.compatibility)."""
