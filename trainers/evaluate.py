"""`python -m trainers.evaluate`, for one more version: the command is `trainyard evaluate`."""

from trainers import former

if __name__ == "__main__":
    former.run("evaluate")
