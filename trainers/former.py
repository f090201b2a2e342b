"""What `python -m trainers.NAME` does for one more version: it runs `trainyard NAME`, and says so to a person."""

import os
import sys

from trainyard import cli


def run(name: str) -> None:
    """Run the subcommand in this process. In a pod the chart chose the words, and nothing is said."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ and sys.stderr.isatty():
        print(f"note: `python -m trainers.{name}` is `trainyard {name}` now", file=sys.stderr, flush=True)
    cli.main([name, *sys.argv[1:]])
