"""`python -m trainers.preflight`, for one more version: the command is `trainyard preflight`."""

from trainers import former

if __name__ == "__main__":
    former.run("preflight")
