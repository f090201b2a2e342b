"""What users run about one Helm release: why it waits or failed, how far it is, and its files."""

import importlib.util
import sys

if importlib.util.find_spec("kubernetes") is None:
    remedy = "python3 -m venv .venv && .venv/bin/pip install 'kubernetes>=35'"
    text = f"error: {sys.executable} has no package kubernetes, the cluster's client; in this checkout: {remedy}"
    print(f"{text} (or hack/bootstrap python, which installs all that the tests need)", file=sys.stderr)
    sys.exit(2)
