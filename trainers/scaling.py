"""`python -m trainers.scaling`, for one more version: the command is `trainyard scaling`."""

from trainers import former

if __name__ == "__main__":
    former.run("scaling")
