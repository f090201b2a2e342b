"""`python -m trainers.mpi`, for one more version: the command is `trainyard mpi`."""

from trainers import former

if __name__ == "__main__":
    former.run("mpi")
