"""What users run about one Helm release: why it waits or failed, how far it is, and its files."""

import importlib.util
import sys

if importlib.util.find_spec("kubernetes") is None:
    remedy = "run `scripts/bootstrap python` in this checkout, or `pip install 'kubernetes>=35'` for this Python"
    print(f"error: {sys.executable} has no package kubernetes, the client of the cluster: {remedy}", file=sys.stderr)
    sys.exit(2)
