"""`python -m trainers.config`, for one more version: the command is `trainyard config`."""

import importlib
import sys

from trainers import former

if __name__ == "__main__":
    former.run("config")
sys.modules[__name__] = importlib.import_module("trainyard.config")
