"""`python -m trainers.predict`, for one more version: the command is `trainyard predict`."""

from trainers import former

if __name__ == "__main__":
    former.run("predict")
