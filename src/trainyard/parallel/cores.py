"""The CPU cores that this process may keep busy: its affinity, its container's limit, its neighbours' shares."""

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_given: list[int] = []


def share(local_world: int) -> int:
    """Cores for one of `local_world` processes on this node, at least one; a fraction is rounded down."""
    return max(1, int(min(count_allowed(), limit()) / local_world))


def count_allowed() -> int:
    """Cores that this process was given."""
    return _given[-1] if _given else len(os.sched_getaffinity(0))


def remember() -> None:
    """Keep counting the cores that this process has now: it is about to bind itself to some of them (device.py)."""
    _given.append(count_allowed())


def limit(root: Path = CGROUPS, membership: Path = MEMBERSHIP) -> float:
    """Return the least quota of this process's control groups, in cores; infinite without one.

    A container sees its own group as the root, or the path on the host, which is not mounted in it (cgroup v1): then
    the mount itself is the group.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    least = math.inf
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / controllers if controllers else root
        if controllers and not mount.is_dir():
            mount = root / "cpu"
        group = mount / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                least = min(least, _quota(folder))
    return least


def _quota(group: Path) -> float:
    """Return a group's quota in cores, of cgroup v2 (`cpu.max`: quota and period in us) or v1; infinite without one."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return int(quota) / int(period) if quota not in ("max", "-1") else math.inf
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
