"""What users run about one Helm release: why it waits or failed, how far it is, and its files."""

import importlib.util
import sys

if importlib.util.find_spec("kubernetes") is None:
    remedy = "pip install trainyard, or in a checkout: hack/bootstrap python"
    print(f"error: {sys.executable} has no package kubernetes, the cluster's client: {remedy}", file=sys.stderr)
    sys.exit(2)
