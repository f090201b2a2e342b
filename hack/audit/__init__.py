"""Known vulnerabilities of what the lock files name: `python -m hack.audit [DATABASE...]` (make audit)."""
