"""`python -m trainers.prepare`, for one more version: the command is `trainyard prepare`."""

import importlib
import sys

from trainers import former

if __name__ == "__main__":
    former.run("prepare")
sys.modules[__name__] = importlib.import_module("trainyard.prepare")
