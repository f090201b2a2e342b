"""The settings of a run: every key, its type, its default and what it means.

The model is closed (an unknown key is an error), frozen, and strict about types. Reading files, recipes and flags, and
turning a mistake into a message for people, is `trainers.config`'s work. Nothing here imports torch: the chart's schema
is generated from this file.
"""

from typing import Annotated, Literal

from pydantic import Field

from trainers.config.sections.base import Positive, Settings
from trainers.config.sections.data import Augment, Data
from trainers.config.sections.learning import Batch, Ema, Loss, Model, Optimizer, Schedule, Validate
from trainers.config.sections.running import Checkpoint, Comm, Ddp, Debug, Fsdp, Horovod, Log, Metrics, Run, Wandb

__all__ = [
    "Augment",
    "Batch",
    "Checkpoint",
    "Comm",
    "Config",
    "Data",
    "Ddp",
    "Debug",
    "Ema",
    "Fsdp",
    "Horovod",
    "Log",
    "Loss",
    "Metrics",
    "Model",
    "Optimizer",
    "Run",
    "Schedule",
    "Validate",
    "Wandb",
]


class Config(Settings):
    """All settings of a run."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        default=1, description="Seed of order, augmentation and initial weights."
    )
    run: Run = Field(default=Run(), description="Run directory and restarts.")
    resume: str = Field(
        default="auto",
        min_length=1,
        description="`auto`: go on from the newest checkpoint. `never`: start afresh, moving what is there aside. "
        "Else the path of a checkpoint.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda when there is one.")
    precision: Literal["fp64", "fp32", "bf16", "fp16"] = Field(
        default="fp32", description="bf16 and fp16 are autocast with fp32 weights."
    )
    strategy: Literal["auto", "ddp", "fsdp", "single", "horovod"] = Field(
        default="auto",
        description="auto: ddp under trainers.ddp, horovod under trainers.hvd. fsdp: every process keeps a part of the "
        "weights and of the optimizer's state.",
    )
    epochs: Positive | None = Field(
        default=None, description="Length of the run in epochs. Set exactly one of epochs, max_steps."
    )
    max_steps: Positive | None = Field(default=None, description="Length of the run in steps.")
    model: Model = Field(default=Model(), description="The model.")
    data: Data = Field(default=Data(), description="The data.")
    augment: Augment = Field(default=Augment(), description="Augmentation.")
    batch: Batch = Field(default=Batch(), description="Batch size.")
    optimizer: Optimizer = Field(default=Optimizer(), description="Optimizer.")
    schedule: Schedule = Field(default=Schedule(), description="Learning-rate schedule.")
    loss: Loss = Field(default=Loss(), description="Loss.")
    ema: Ema = Field(default=Ema(), description="Moving average of the weights.")
    validate_: Validate = Field(default=Validate(), alias="validate", description="Validation.")
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="Checkpoints.")
    log: Log = Field(default=Log(), description="Logging.")
    comm: Comm = Field(default=Comm(), description="Communication.")
    ddp: Ddp = Field(default=Ddp(), description="DDP only.")
    horovod: Horovod = Field(default=Horovod(), description="Horovod.")
    fsdp: Fsdp = Field(default=Fsdp(), description="FSDP.")
    wandb: Wandb = Field(default=Wandb(), description="Weights & Biases.")
    metrics: Metrics = Field(default=Metrics(), description="Prometheus.")
    debug: Debug = Field(default=Debug(), description="Debugging.")
