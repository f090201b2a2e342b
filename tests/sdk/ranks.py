"""Run a program as so many ranks, for each number given, in the environment that torchrun sets; torch is loaded once.

python ranks.py PROGRAM FOLDER...     each folder's name is its number of ranks
"""

import os
import runpy
import sys
import traceback
from pathlib import Path

from tests import ports


def fork(program: str, folder: Path, rank: int, world: int, port: int) -> int:
    """Start one rank in the folder; its process id."""
    if pid := os.fork():
        return pid
    try:
        os.chdir(folder)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()})
        runpy.run_path(program, run_name="__main__")
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def main(program: str, *folders: str) -> int:
    """Run them one number after the other; 1 if any rank failed."""
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401

    for folder in map(Path, folders):
        world, port = int(folder.name), ports.free()
        children = [fork(program, folder, rank, world, port) for rank in range(world)]
        ends = [os.waitpid(child, 0)[1] for child in children]
        if any(ends):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
