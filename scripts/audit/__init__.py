"""Known vulnerabilities of what the lock files name: `python -m scripts.audit [DATABASE...]` (make audit)."""
