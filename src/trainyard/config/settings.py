"""All settings of a run, and what must fit together across sections.

The model is closed (an unknown key is an error), frozen, and strict about types. Each section checks itself
(sections/), this file checks sections against each other, and run_plan.py checks what depends on the number of
processes; nothing is checked twice. This package does not import torch, so a mistake is reported in a tenth of a
second.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainyard.config.checking import refuse
from trainyard.config.sections.base import Positive, Settings
from trainyard.config.sections.data import AugmentSettings, DataSettings
from trainyard.config.sections.learning import (
    BatchSettings,
    EmaSettings,
    LossSettings,
    ModelSettings,
    OptimizerSettings,
    ScheduleSettings,
    ValidateSettings,
)
from trainyard.config.sections.running import (
    CheckpointSettings,
    CommSettings,
    CostSettings,
    DdpSettings,
    DebugSettings,
    FsdpSettings,
    HorovodSettings,
    HostSettings,
    LogSettings,
    MetricsSettings,
    MlflowSettings,
    PublishSettings,
    RunSettings,
    TensorboardSettings,
    WandbSettings,
)


class Config(Settings):
    """All settings of a run."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        default=1, description="Seed of order, augmentation and initial weights."
    )
    run: RunSettings = Field(default=RunSettings(), description="Run directory and restarts.")
    resume: str = Field(
        default="auto",
        min_length=1,
        description="`auto`: resume from the newest checkpoint; `never`: start from scratch, moving the old run aside. "
        "Else the path of a checkpoint.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda when there is one.")
    precision: Literal["fp64", "fp32", "tf32", "bf16", "fp16"] = Field(
        default="fp32",
        description="fp32: in full. tf32: a GPU multiplies and convolves fp32 numbers in TF32 (10 bits of mantissa); "
        "elsewhere it is fp32. bf16 and fp16 are autocast with fp32 weights.",
    )
    deterministic: bool = Field(
        default=False,
        description="The same bits in every start on the same GPUs and versions, at a cost in speed; an operation that "
        "cannot do so ends the run with exit code 2. CPUs need no switch.",
    )
    strategy: Literal["auto", "ddp", "fsdp", "exact", "single", "horovod"] = Field(
        default="auto",
        description="auto: ddp under trainers.ddp, horovod under trainers.hvd. fsdp: every process keeps a part of the "
        "weights and of the optimizer's state. exact: sums in one order, for the same bits on 1, 2, 4, ... processes.",
    )
    epochs: Positive | None = Field(
        default=None, description="Length of the run in epochs. Set exactly one of epochs, max_steps."
    )
    max_steps: Positive | None = Field(default=None, description="Length of the run in steps.")
    model: ModelSettings = Field(default=ModelSettings(), description="The model.")
    data: DataSettings = Field(default=DataSettings(), description="The data.")
    augment: AugmentSettings = Field(default=AugmentSettings(), description="Augmentation.")
    batch: BatchSettings = Field(default=BatchSettings(), description="Batch size.")
    optimizer: OptimizerSettings = Field(default=OptimizerSettings(), description="Optimizer.")
    schedule: ScheduleSettings = Field(default=ScheduleSettings(), description="Learning-rate schedule.")
    loss: LossSettings = Field(default=LossSettings(), description="Loss.")
    ema: EmaSettings = Field(default=EmaSettings(), description="Moving average of the weights.")
    validate_: ValidateSettings = Field(default=ValidateSettings(), alias="validate", description="Validation.")
    checkpoint: CheckpointSettings = Field(default=CheckpointSettings(), description="Checkpoints.")
    log: LogSettings = Field(default=LogSettings(), description="Logging.")
    comm: CommSettings = Field(default=CommSettings(), description="Communication.")
    ddp: DdpSettings = Field(default=DdpSettings(), description="DDP only.")
    horovod: HorovodSettings = Field(default=HorovodSettings(), description="Horovod.")
    fsdp: FsdpSettings = Field(default=FsdpSettings(), description="FSDP.")
    host: HostSettings = Field(default=HostSettings(), description="The process on its node.")
    wandb: WandbSettings = Field(default=WandbSettings(), description="Weights & Biases.")
    tensorboard: TensorboardSettings = Field(default=TensorboardSettings(), description="TensorBoard.")
    mlflow: MlflowSettings = Field(default=MlflowSettings(), description="MLflow.")
    metrics: MetricsSettings = Field(default=MetricsSettings(), description="Prometheus.")
    publish: PublishSettings = Field(default=PublishSettings(), description="What is published at the end.")
    cost: CostSettings = Field(default=CostSettings(), description="Expected rate and price.")
    debug: DebugSettings = Field(default=DebugSettings(), description="Debugging.")

    @model_validator(mode="after")
    def _fits_together(self) -> "Config":
        found = [
            text for rule in (_alternatives, _mixing, _precision, _compiling, _communication) for text in rule(self)
        ]
        if found:
            refuse(*found)
        return self


def _alternatives(config: Config) -> Iterator[str]:
    """Keys of which exactly one is set."""
    if (config.batch.global_ is None) == (config.batch.per_process is None):
        yield (
            f"batch: set exactly one of batch.global (now {config.batch.global_}) and batch.per_process "
            f"(now {config.batch.per_process}); with global the result does not depend on the number of processes"
        )
    if (config.epochs is None) == (config.max_steps is None):
        yield f"set exactly one of epochs (now {config.epochs}) and max_steps (now {config.max_steps})"
    if not config.data.dir and not config.data.dataset:
        yield "data.dir = '': no data; give the folder of a prepared dataset, `sample` or `synthetic`, or data.dataset"


def _mixing(config: Config) -> Iterator[str]:
    """Mixup and CutMix need two samples in each forward."""
    if config.augment.mixup or config.augment.cutmix:
        if config.batch.micro == 1:
            yield (
                "batch.micro = 1 with augment.mixup or augment.cutmix: neighbours are mixed within a forward; use 2 or "
                "more"
            )
        if 1 in (config.batch.global_, config.batch.per_process):
            yield ("a batch of 1 with augment.mixup or augment.cutmix: no neighbour to mix with; use 2 or more samples")


def _precision(config: Config) -> Iterator[str]:
    """Yield what each precision excludes."""
    if config.precision == "fp64" and config.model.compile:
        yield "model.compile = True with precision = 'fp64': fp64 is for exact checks; set compile to false"
    if config.precision in ("tf32", "fp16") and config.device == "cpu":
        name = config.precision
        yield f"precision = {name!r} with device = 'cpu': {name} needs a GPU; use fp32 or bf16"


def _compiling(config: Config) -> Iterator[str]:
    """Yield what belongs to a compiled model."""
    if config.model.compile_mode != "default" and not config.model.compile:
        yield (
            f"model.compile_mode = {config.model.compile_mode!r} with model.compile = False: nothing is compiled; set "
            "model.compile to true, or remove the mode"
        )
    if config.model.compile_cache and not config.model.compile:
        yield (
            "model.compile_cache = True with model.compile = False: nothing is compiled; set model.compile to true, or "
            "compile_cache to false"
        )


def _communication(config: Config) -> Iterator[str]:
    """Yield what is wrong on any number of processes."""
    yield from rounding(config, "comm.compression", config.comm.compression)
    if config.comm.backend == "nccl" and config.device == "cpu":
        yield "comm.backend = 'nccl' with device = 'cpu': nccl needs GPUs; use gloo or auto"


def rounding(config: Config, key: str, value: str) -> Iterator[str]:
    """Why gradients must not be rounded in the way that `key` asks for, if they must not."""
    if value == "none":
        return
    if config.comm.gradients == "fp64":
        yield f"{key} = {value!r} and comm.gradients = 'fp64': one rounds, one is exact; set one of the two"
    elif config.precision == "fp64":
        yield f"{key} = {value!r} with precision = 'fp64': fp64 is for exact checks; set it to none"
