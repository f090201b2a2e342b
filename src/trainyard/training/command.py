"""The steps that both entry points share: read the settings, count the start, then train."""

import argparse
import math
import os
import sys
import warnings

from trainyard import config, parallel
from trainyard.core import garbage, interrupts
from trainyard.core.exits import Exit, end_on_failed_preflight
from trainyard.core.variables import check_numbers
from trainyard.models import weights
from trainyard.parallel.memory import let_segments_grow
from trainyard.run import input_files, resuming, starts
from trainyard.run.directory import check_ended, identity, requested_length
from trainyard.run.failures import Attempt, explain_errors


def main(program: str, launcher: str, description: str) -> int:
    """Train as the command line says, under one of the two launchers (`ddp`: torchrun, `horovod`: mpirun)."""
    end_on_failed_preflight()
    interrupts.outlive_terminal()
    check_numbers()
    parser = argparse.ArgumentParser(prog=program, description=description)
    config.add_options(parser)
    options = parser.parse_args()
    loaded = config.load(options)
    settings = weights.apply_preprocessing(loaded, lambda: resuming.recorded_settings(loaded.run, loaded.resume))
    place = parallel.locate(launcher)
    if place.rank == 0 and (deprecated := config.warn_of_former_names(options)):
        print("\n".join(deprecated), file=sys.stderr, flush=True)
    plan = config.make_plan(settings, launcher, place.world)
    run, mark = settings.run, config.fingerprint(settings)
    classes = settings.model.num_classes or None
    wanted = identity(settings.model, settings.optimizer, settings.seed, batch=plan.batch, classes=classes)
    length = requested_length(settings.epochs, settings.max_steps)
    read = input_files.paths(run, settings.resume, settings.data, settings.model)
    if message := check_ended(run, settings.resume, fingerprint=mark, wanted=wanted, length=length, read=read):
        if place.rank == 0:
            print(message, flush=True)
        return Exit.DONE
    share = math.ceil(plan.batch / place.world)
    micro, validated = settings.batch.micro, settings.validate_.batch
    with explain_errors(Attempt(run, mark, place, share, micro, validated, settings.data, read)):
        if place.rank == 0:
            starts.count(run, mark)
            processes = "1 process" if place.world == 1 else f"{place.world} processes"
            print(f"starting {settings.model.name} on {processes}: PyTorch is loaded, then data and model", flush=True)
        let_segments_grow(settings.device, settings.model.compile_mode, os.environ)
        # Imported late: a mistake in the settings is reported in a tenth of a second, before torch is loaded; and a
        # start is counted before torch, the process group or the dataset can crash it.
        with garbage.paused():
            from trainyard.training import loop

        warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
        loop.run(settings, plan, place)
    return Exit.DONE
