"""`python -m trainers.report`, for one more version: the command is `trainyard report`."""

import importlib
import sys

from trainers import former

if __name__ == "__main__":
    former.run("report")
sys.modules[__name__] = importlib.import_module("trainyard.report")
