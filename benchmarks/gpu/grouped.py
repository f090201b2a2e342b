"""The trainer with a fault (tests/util/faulty.py), in a process group of one: `python -m benchmarks.gpu.grouped`.

So NCCL's threads are there, which look at the same GPU and would end the process by their own means.
"""

import runpy

from benchmarks.gpu.parts import groups
from trainyard import parallel

if __name__ == "__main__":
    parallel.connect = lambda config, plan, place: groups.ddp(config)
    runpy.run_module("faulty", run_name="__main__")
