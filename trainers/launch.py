"""`python -m trainers.launch`, for one more version: the command is `trainyard launch`."""

from trainers import former

if __name__ == "__main__":
    former.run("launch")
