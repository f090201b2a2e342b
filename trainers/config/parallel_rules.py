"""Which settings a way of training on several processes can't do: refused before any process looks for another.

Not in `parallel/`, which needs torch: a mistake in the settings is told before torch is loaded.
"""

from trainers.config.settings import Config
from trainers.exits import UserError


def check(config: Config) -> None:
    """Refuse what no number of processes would make right."""
    _check_rounding(config, "comm.compression", config.comm.compression)
    if config.comm.backend == "nccl" and config.device == "cpu":
        raise UserError("comm.backend = 'nccl' with device = 'cpu': nccl needs GPUs; use gloo or auto")


def check_world(config: Config, name: str, world: int, accumulation: int) -> None:
    """Refuse what the strategy of this name can't do on so many processes, with so many forwards per step."""
    if name == "horovod":
        if config.comm.compression != "none":
            raise UserError(
                f"comm.compression = {config.comm.compression!r}: Horovod compresses by itself; set horovod.compression"
            )
        _check_rounding(config, "horovod.compression", config.horovod.compression)
        if config.horovod.op == "adasum":
            _check_adasum(config, world)
    if name == "ddp" and config.ddp.static_graph and world > 1 and accumulation > 1:
        raise UserError(
            f"ddp.static_graph = True with {accumulation} forwards per step (batch.micro = {config.batch.micro}): "
            "torch's DDP can't do both; set one of them to false or 0"
        )


def _check_rounding(config: Config, key: str, value: str) -> None:
    if value == "none":
        return
    if config.comm.gradients == "fp64":
        raise UserError(f"{key} = {value!r} and comm.gradients = 'fp64': one rounds, one is exact; set one of the two")
    if config.precision == "fp64":
        raise UserError(f"{key} = {value!r} with precision = 'fp64': fp64 is for exact checks; set it to none")


def _check_adasum(config: Config, world: int) -> None:
    """Adasum combines what each process's optimizer made of its own gradient: there is no common gradient to change."""
    if world & (world - 1):
        raise UserError(f"horovod.op = 'adasum' on {world} processes: needs a power of two; use that many, or average")
    if config.optimizer.clip_norm:
        raise UserError(
            f"optimizer.clip_norm = {config.optimizer.clip_norm} with horovod.op = 'adasum': Adasum never forms the "
            "gradient whose norm this would limit; set it to 0, or horovod.op to average"
        )
    if config.precision == "fp16":
        raise UserError(
            "precision = 'fp16' with horovod.op = 'adasum': the scaler must see combined gradients, and Adasum "
            "combines updates; use bf16, or horovod.op average"
        )
    if config.horovod.predivide != 1.0:
        raise UserError(
            f"horovod.predivide = {config.horovod.predivide} with horovod.op = 'adasum': there is no average to "
            "divide; set it to 1"
        )
