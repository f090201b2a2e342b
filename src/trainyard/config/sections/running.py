"""The run directory, checkpoints, communication, logging and telemetry."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from trainyard.config.checking import refuse
from trainyard.config.sections.base import Fraction, Natural, Positive, Settings


class RunSettings(Settings):
    """Where the run's files go, and how often it may restart."""

    dir: str = Field(
        default="runs/default", min_length=1, description="Run directory; on a cluster it lies on the results claim."
    )
    name: str = Field(default="", description="Name shown in reports, W&B and MLflow; empty: the last part of run.dir.")
    max_restarts: Natural = Field(
        default=3, description="Restarts allowed without a new checkpoint; one more ends with exit code 1."
    )
    adopt: bool = Field(
        default=False,
        description="Continue a run of another release (namespace and name) on the same volume, which is refused "
        "otherwise, and own it from then on.",
    )
    keep_aside: Positive = Field(
        default=5,
        description="How many runs in previous/ are kept, and how many checkpoints of each kind that was set aside "
        "(damaged, late, left).",
    )


class CheckpointSettings(Settings):
    """When the run's state is saved, and how much of it is kept."""

    every_steps: Natural = Field(
        default=500, description="Steps between checkpoints; the end of the run is one too. 0: only then."
    )
    every_seconds: Literal["auto"] | Natural = Field(
        default=0,
        description="Most seconds between checkpoints; 0: any. `auto`: 15 to 300, from what a checkpoint and a start "
        "cost this run and how often it is interrupted. It holds beside every_steps.",
    )
    keep_last: Positive = Field(default=3, description="Newest checkpoints kept.")
    keep_best: Natural = Field(
        default=0, description="Checkpoints kept beside them, by top-1; each validation then has one of its own."
    )


class LogSettings(Settings):
    """The lines that are written during training."""

    every_steps: Positive | None = Field(
        default=None,
        description="Steps between lines of metrics.jsonl; unset: 10, or fewer where the run would have less than 50 "
        "lines.",
    )
    console_seconds: Annotated[float, Field(gt=0.0)] = Field(default=3.0, description="Seconds between progress lines.")
    max_loss: Annotated[float, Field(ge=0.0)] = Field(
        default=1e6,
        description="A training loss above this has exploded: the run ends with exit code 77, as on NaN. 0: no limit.",
    )


class CommSettings(Settings):
    """Communication between processes."""

    backend: Literal["auto", "gloo", "nccl"] = Field(
        default="auto", description="DDP backend; auto: nccl on cuda, gloo on cpu."
    )
    gradients: Literal["same", "fp64"] = Field(
        default="same",
        description="Type in which gradients are summed over processes. `fp64` takes twice the traffic, and the order "
        "of summing no longer shows: DDP and Horovod give the same fp32 losses.",
    )
    compression: Literal["none", "bf16", "fp16"] = Field(
        default="none",
        description="Type in which DDP sends gradients and FSDP sums them, rounded; Horovod has its own key.",
    )
    probe: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Before training, measure the transport between nodes (on one node, between its GPUs) for about "
        "10 seconds, and name a node that is far slower than the others. `auto`: on GPUs.",
    )
    probe_least: Fraction = Field(
        default=0.0,
        description="A node with less than this share of the median node's bandwidth ends the run with exit code 201; "
        "0: one with less than half is only named.",
    )
    timeout_seconds: Positive = Field(
        default=600, description="A collective that takes longer ends the run with exit code 138."
    )
    hang_seconds: Literal["auto"] | Annotated[float, Field(ge=0.0)] = Field(
        default="auto",
        description="A process that makes no progress for so long ends the run with exit code 138, naming the ranks "
        "that did not arrive; the start, checkpoints and whatever is done for the first time may take six times as "
        "long. `auto`: ten times the run's longest step, from 60 to 300 seconds; 300 for what has no usual length; 20 "
        "for a rank without a sign of life. 0: never.",
    )


class DdpSettings(Settings):
    """Settings of DDP; other strategies ignore them."""

    bucket_mb: Positive = Field(
        default=25, description="Gradients that are sent at once, in MiB: smaller parts start earlier, and cost more."
    )
    static_graph: bool = Field(
        default=False,
        description="Every step uses the same parameters, though perhaps not all of them; not with accumulation.",
    )


class HorovodSettings(Settings):
    """Settings of Horovod; other strategies ignore them."""

    op: Literal["average", "adasum"] = Field(
        default="average", description="How gradients are combined; Adasum needs a power-of-two number of processes."
    )
    compression: Literal["none", "fp16"] = Field(default="none", description="Compression of gradients on the wire.")
    predivide: Annotated[float, Field(gt=0.0)] = Field(
        default=1.0,
        description="Gradients are divided by this before they are summed, and by the rest of the number of processes "
        "after: for fp16's range. Not with Adasum.",
    )
    cycle_ms: Annotated[float, Field(gt=0.0)] | None = Field(
        default=None, description="Milliseconds between looks for gradients to send (HOROVOD_CYCLE_TIME); unset: 1."
    )
    fusion_mb: Natural | None = Field(
        default=None,
        description="Gradients sent at once, in MiB (HOROVOD_FUSION_THRESHOLD); 0: each by itself, unset: 128.",
    )


class FsdpSettings(Settings):
    """Settings of FSDP; other strategies ignore them."""

    reshard_after_forward: bool = Field(
        default=True,
        description="Drop the other processes' parts of a block's weights after its forward and fetch them again for "
        "backward; false: keep them until then, for more memory and less traffic.",
    )


class HostSettings(Settings):
    """The process on its node."""

    numa: bool = Field(
        default=True,
        description="Bind each process to the cores beside its GPU, where the kernel names them (NUMA); it does not "
        "change how many threads prepare images.",
    )
    gc_steps: Natural = Field(
        default=50,
        description="Steps between Python's garbage collections, at the same steps on all processes, which otherwise "
        "wait for each other's in turn. 0: whenever Python likes.",
    )


class WandbSettings(Settings):
    """Weights & Biases, on rank 0 only."""

    mode: Literal["auto", "online", "offline", "off"] = Field(
        default="auto", description="`auto`: online when the key is there (WANDB_API_KEY or its secret file), else off."
    )
    project: str = Field(default="trainyard", min_length=1, description="W&B project.")

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        """YAML 1.1 reads `off` without quotes as false."""
        return "off" if value is False else value


class TensorboardSettings(Settings):
    """TensorBoard, by rank 0 only."""

    enabled: bool = Field(
        default=False, description="Write TensorBoard's event files to tensorboard/ in the run directory."
    )


class MlflowSettings(Settings):
    """MLflow, on rank 0 only."""

    mode: Literal["auto", "off"] = Field(
        default="auto",
        description="`auto`: on when there is a tracking server (uri, or MLFLOW_TRACKING_URI), else off.",
    )
    uri: str = Field(
        default="",
        description="Address of the tracking server, such as https://mlflow.example.com; empty: MLFLOW_TRACKING_URI. "
        "Its user and password, or token, are in MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and "
        "MLFLOW_TRACKING_TOKEN, or the Secret's files of these names.",
    )
    experiment: str = Field(
        default="trainyard", min_length=1, description="MLflow experiment, which is created if it is not there."
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        """YAML 1.1 reads `off` without quotes as false."""
        return "off" if value is False else value

    @field_validator("uri")
    @classmethod
    def _address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.username or parts.password:
            refuse(
                "mlflow.uri must not hold a user name or password, since it is kept in a ConfigMap and in the run's "
                "records: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or name a Secret in "
                "global.secrets.mlflow"
            )
        if value and (parts.scheme not in ("http", "https") or not parts.hostname):
            refuse(f"mlflow.uri = {value!r}: give the address of a tracking server, http://... or https://...")
        return value


class MetricsSettings(Settings):
    """Prometheus endpoint, on the first process of each node; the numbers of the run are rank 0's."""

    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="Port of the text endpoint; 0: none.")


class PublishSettings(Settings):
    """The files that are published beside weights, config.json and the model card."""

    export: list[Literal["torch", "onnx"]] = Field(
        default=[],
        description="Other formats of the model: `torch` is model.pt2, `onnx` is model.onnx, which needs the "
        "packages onnx and onnxscript. Each is compared with the model before it is published.",
    )


class CostSettings(Settings):
    """The expected rate and the price that the report and `trainyard cost` compute with."""

    rate: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0,
        description="Images per second expected of each GPU, or of each process where there are no GPUs, in training; "
        "0: not known.",
    )
    source: str = Field(default="", description="Where the rate is from, shown beside it.")
    price: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0, description="Price of a GPU hour, or of a process's hour where there are no GPUs; 0: no money."
    )
    currency: str = Field(default="USD", min_length=1, max_length=8, description="Currency of the price.")


class DebugSettings(Settings):
    """For tests and for finding faults."""

    record_samples: bool = Field(default=False, description="Write each step's sample ids to samples/rank-R.jsonl.")
