"""Follow a TrainJob that anything created: log of its first node, progress, warnings; wait for its end; delete it.

python examples/sdk/watch.py -n training                     # which there are
python examples/sdk/watch.py -n training JOB                 # follow it until it has ended
python examples/sdk/watch.py -n training JOB --delete        # delete it; what it wrote to the claims stays
"""

import argparse

import following
import jobs


def main() -> int:
    """List, follow or delete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--namespace", "-n", help="(kubectl's own unless given)")
    parser.add_argument("job", nargs="?", help="a job's name; without one, all are listed")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds to wait for the end (default 3600)")
    parser.add_argument("--delete", action="store_true", help="delete the job, also while it runs")
    given = parser.parse_args()
    client = jobs.connect(given.namespace)
    if given.job and given.delete:
        following.delete(client, given.job)
        print(f"deleted trainjob/{given.job}")
    elif given.job:
        return following.follow(client, given.job, given.timeout)
    else:
        for name, state in following.listed(client):
            print(f"{name}: {state}", *following.progress(client, name))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
