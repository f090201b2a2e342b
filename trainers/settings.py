"""The settings of a run: every key, its type, its default and what it means.

The model is closed (an unknown key is an error), frozen, and strict about types. Reading files, recipes and flags, and
turning a mistake into a message for people, is `trainers.config`'s work. Nothing here imports torch: the chart's schema
is generated from this file.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Triple = Annotated[list[float], Field(min_length=3, max_length=3)]
Range = Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=2, max_length=2)]


class Settings(BaseModel):
    """Base of every section: closed, frozen, strict, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)


class Run(Settings):
    """Where the run's files go, and how often it may restart."""

    dir: str = Field(
        default="runs/default", min_length=1, description="Run directory; on a cluster it lies on the results claim."
    )
    name: str = Field(default="", description="Name shown in reports and W&B; empty: the last part of run.dir.")
    max_restarts: Natural = Field(
        default=3, description="Restarts allowed without a new checkpoint; one more ends with exit code 1."
    )


class Model(Settings):
    """What is trained."""

    name: str = Field(
        default="torchvision:resnet50",
        min_length=1,
        description="`torchvision:NAME` (or just NAME), `timm:NAME` where timm is installed, or "
        "`package.module:function`, called with num_classes=N, and image_size=S if it takes that.",
    )
    num_classes: Natural = Field(default=0, description="Number of classes; 0: as many as the data has.")
    batch_norm: Literal["local", "global"] = Field(
        default="local",
        description="`local`: each forward normalises its own samples (fast; results then depend on the number of "
        "processes). `global`: statistics over the global batch's forward on all processes.",
    )
    zero_init_last_bn: bool = Field(
        default=False, description="Start the last BatchNorm of each residual block of a torchvision ResNet at 0."
    )
    conv_init: Literal["default", "fan_in", "fan_out"] = Field(
        default="default",
        description="`fan_in`, `fan_out`: start convolutions from He's normal distribution over these; default: the "
        "model's own start (fan_out for torchvision's ResNets).",
    )
    head_init_std: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0,
        description="Standard deviation of the normal distribution the last linear layer starts from; 0: default.",
    )
    pretrained: str = Field(
        default="", description="Path of a .pth or .safetensors state dict to start from; empty: none."
    )
    pretrained_head: Literal["keep", "drop"] = Field(
        default="keep",
        description="`drop`: the last linear layer starts afresh, as it must where the number of classes differs.",
    )
    channels_last: bool = Field(default=False, description="Use the channels_last memory format.")
    compile: bool = Field(default=False, description="Compile the model with torch.compile.")


class Data(Settings):
    """What it is trained on, and how pictures are read and cropped."""

    dir: str = Field(
        default="",
        description="Prepared dataset (the folder with manifest.json). `sample`: the sample set of real pictures, "
        "prepared on first use. `synthetic`: generated pictures, for measuring speed.",
    )
    image_size: Positive = Field(default=224, description="Height and width of a training picture, in pixels.")
    val_image_size: Natural = Field(
        default=0, description="Height and width of a validation picture; 0: as image_size."
    )
    val_resize: Natural = Field(
        default=0,
        description="Validation pictures are resized to this shorter side, then centre-cropped; 0: 8/7 of their size.",
    )
    dataset: str = Field(
        default="",
        description="A dataset of your own instead of data.dir: `package.module:function`, called with split='train' "
        "and split='val'; see docs/data.md.",
    )
    decoder: Literal["auto", "native", "torchvision", "pillow"] = Field(
        default="auto",
        description="What decodes pictures. `native` decodes only the area that is used; auto: the first of native, "
        "torchvision and pillow that is here. Pixels differ a little, so all processes must have the same.",
    )
    workers: Positive = Field(default=4, description="Decoding threads per process.")
    prefetch: Positive = Field(default=2, description="Batches per process prepared ahead.")
    readers: Positive = Field(
        default=16, description="Reading threads per process: how many reads storage has to answer at once."
    )
    readahead: Natural = Field(
        default=1, description="Batches per process read ahead of those; 0: the threads that decode read, too."
    )
    mean: Triple = Field(
        default=[0.485, 0.456, 0.406], description="Mean of each channel, subtracted (pictures are 0 to 1)."
    )
    std: Triple = Field(default=[0.229, 0.224, 0.225], description="Standard deviation of each channel, divided by.")
    synthetic_samples: Positive = Field(
        default=1280, description="Training samples of the synthetic set; validation has 1/5."
    )


class Augment(Settings):
    """Random changes to training pictures; a pure function of (seed, epoch, sample)."""

    crop: Literal["random_resized", "pad", "none"] = Field(
        default="random_resized",
        description="`random_resized`: a random area and aspect ratio, resized. `pad`: resize, pad, crop at random. "
        "`none`: as in validation.",
    )
    scale: Range = Field(
        default=[0.08, 1.0], description="Area of a random_resized crop, least and most, as a fraction."
    )
    ratio: Range = Field(default=[3 / 4, 4 / 3], description="Aspect ratio of a random_resized crop, least and most.")
    pad: Natural = Field(default=4, description="Pixels of padding on each side for `pad`.")
    flip: Fraction = Field(default=0.5, description="Probability of a horizontal flip.")
    interpolation: Literal["bilinear", "bicubic"] = Field(
        default="bilinear", description="How pictures are resized, in training and in validation; always antialiased."
    )
    policy: Literal["none", "trivial", "rand", "rand_increasing"] = Field(
        default="none",
        description="Changes of shape and colour, after the flip. `trivial`: TrivialAugment Wide. `rand`: RandAugment, "
        "both as torchvision has them. `rand_increasing`: timm's RandAugment whose ops all grow with the magnitude "
        "(its rand-mM-mstd0.5-inc1).",
    )
    policy_ops: Positive = Field(default=2, description="Operations per picture of `rand` and `rand_increasing`.")
    policy_magnitude: Annotated[int, Field(ge=0, le=30)] = Field(
        default=9, description="Strength of `rand` (0 to 30) and `rand_increasing` (0 to 10)."
    )
    erase: Fraction = Field(default=0.0, description="Probability that a random rectangle is erased (set to the mean).")
    repeats: Positive = Field(
        default=1,
        description="Repeated augmentation: an epoch takes this many copies of each of its samples, augmented "
        "differently, and only 1/repeats of the samples; its number of steps stays.",
    )
    mixup: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0, description="Alpha of mixup, a blend of neighbours in the global batch; 0: none."
    )
    cutmix: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0,
        description="Alpha of CutMix, a patch of the neighbour; 0: none. With both, each step does one or the other.",
    )


class Batch(Settings):
    """How many samples make a step. Set exactly one of `global` and `per_process`."""

    global_: Positive | None = Field(
        default=None,
        alias="global",
        description="Samples per optimizer step over all processes; results do not depend on how many.",
    )
    per_process: Positive | None = Field(
        default=None,
        description="Samples per step and process: the global batch, and with it the learning rate, grows with them.",
    )
    micro: Natural = Field(
        default=0, description="Most samples per forward; larger per-process batches are accumulated. 0: no limit."
    )


class Optimizer(Settings):
    """The optimizer, and the linear scaling rule."""

    name: Literal["sgd", "lamb", "adamw"] = Field(default="sgd", description="The optimizer.")
    lr: Annotated[float, Field(gt=0.0)] = Field(
        default=0.1, description="Learning rate per `lr_batch` samples of global batch."
    )
    lr_batch: Positive = Field(default=256, description="Global batch for which `lr` holds; others scale it linearly.")
    momentum: Fraction = Field(default=0.9, description="Momentum of sgd.")
    nesterov: bool = Field(default=False, description="Nesterov momentum of sgd.")
    betas: Annotated[list[Annotated[float, Field(ge=0.0, lt=1.0)]], Field(min_length=2, max_length=2)] = Field(
        default=[0.9, 0.999], description="Decay of the first and second moment, of lamb and adamw."
    )
    eps: Annotated[float, Field(gt=0.0)] = Field(
        default=1e-6, description="Added to the root of the second moment, of lamb and adamw."
    )
    clip_norm: Annotated[float, Field(ge=0.0)] = Field(
        default=0.0, description="Largest norm of the global batch's gradient over all parameters; 0: no limit."
    )
    weight_decay: Annotated[float, Field(ge=0.0)] = Field(
        default=1e-4, description="Weight decay: L2 with sgd, decoupled with adamw, within the trust ratio with lamb."
    )
    no_decay: list[Literal["norm", "bias"]] = Field(
        default=["norm", "bias"],
        description="Parameters without weight decay: "
        "`norm` (scale and shift of normalisation layers), `bias` (all others).",
    )


class Schedule(Settings):
    """Learning rate over the run."""

    name: Literal["cosine", "step", "constant"] = Field(default="cosine", description="Shape after the warmup.")
    every: Literal["step", "epoch"] = Field(
        default="step", description="Change the learning rate every step or every epoch."
    )
    warmup_epochs: Annotated[float, Field(ge=0.0)] = Field(default=5.0, description="Epochs of linear warmup.")
    warmup_start: Fraction = Field(
        default=0.0, description="Learning rate at the start of the warmup, as a fraction of the peak."
    )
    final: Fraction = Field(default=0.0, description="Learning rate at the end of a cosine, as a fraction of the peak.")
    milestones: list[Annotated[float, Field(gt=0.0)]] = Field(
        default=[30.0, 60.0, 80.0], description="Epochs at which `step` multiplies the learning rate by `gamma`."
    )
    gamma: Fraction = Field(default=0.1, description="Factor of `step`.")


class Loss(Settings):
    """The training loss."""

    name: Literal["cross_entropy", "bce"] = Field(
        default="cross_entropy", description="`bce`: binary cross-entropy of each class, averaged over classes."
    )
    bce_threshold: Fraction = Field(
        default=0.0, description="With bce, targets above this count as 1, others as 0; 0: as they are."
    )
    label_smoothing: Fraction = Field(default=0.0, description="Label smoothing of the training loss.")


class Ema(Settings):
    """Exponential moving average of the weights; what is validated and published, if kept."""

    decay: Fraction = Field(default=0.0, description="Share that the average keeps at an update; 0: no average.")
    every_steps: Positive = Field(default=1, description="Steps between updates, counted within an epoch.")
    adjust: Literal["none", "torchvision"] = Field(
        default="none",
        description="`torchvision`: 1 - decay is multiplied by global batch * every_steps / epochs (at most 1).",
    )


class Validate(Settings):
    """When the whole validation split is measured, each sample once."""

    every_epochs: Natural = Field(
        default=1, description="Epochs between validations; the last epoch is always one. 0: only then."
    )
    batch: Positive = Field(
        default=128, description="Samples per forward; the same on any number of processes, so that results are too."
    )


class Checkpoint(Settings):
    """When the run's state is saved, and how much of it is kept."""

    every_steps: Natural = Field(
        default=500, description="Steps between checkpoints; the end of the run is one too. 0: only then."
    )
    keep_last: Positive = Field(default=3, description="Newest checkpoints kept.")
    keep_best: Natural = Field(
        default=0, description="Checkpoints kept beside them, by top-1; each validation then has one of its own."
    )


class Log(Settings):
    """What is written during training."""

    every_steps: Positive = Field(default=10, description="Steps between lines of metrics.jsonl.")
    console_seconds: Annotated[float, Field(gt=0.0)] = Field(default=3.0, description="Seconds between progress lines.")
    max_loss: Annotated[float, Field(ge=0.0)] = Field(
        default=1e6,
        description="A training loss above this has exploded: the run ends with exit code 77, as on NaN. 0: no limit.",
    )


class Comm(Settings):
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
    timeout_seconds: Positive = Field(
        default=600, description="A collective that takes longer ends the run with exit code 138."
    )
    hang_seconds: Annotated[float, Field(ge=0.0)] = Field(
        default=300.0,
        description="A process that does not get on for so long ends the run with exit code 138, naming the ranks that "
        "did not arrive; the start, checkpoints and whatever is done for the first time may take six times as long. "
        "0: never.",
    )


class Ddp(Settings):
    """What only DDP knows; other strategies do not look at it."""

    bucket_mb: Positive = Field(
        default=25, description="Gradients that are sent at once, in MiB: smaller parts start earlier, and cost more."
    )
    static_graph: bool = Field(
        default=False,
        description="Every step uses the same parameters, though perhaps not all of them; not with accumulation.",
    )


class Horovod(Settings):
    """What only Horovod knows; other strategies do not look at it."""

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


class Fsdp(Settings):
    """What only FSDP knows; other strategies do not look at it."""

    reshard_after_forward: bool = Field(
        default=True,
        description="Drop the other processes' parts of a block's weights after its forward and fetch them again for "
        "backward; false: keep them until then, for more memory and less traffic.",
    )


class Wandb(Settings):
    """Weights & Biases, on rank 0 only."""

    mode: Literal["auto", "online", "offline", "off"] = Field(
        default="auto", description="`auto`: online when the key is there (WANDB_API_KEY or its secret file), else off."
    )
    project: str = Field(default="trainyard", min_length=1, description="W&B project.")


class Metrics(Settings):
    """Prometheus endpoint, on rank 0 only."""

    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="Port of the text endpoint; 0: none.")


class Debug(Settings):
    """For tests and for finding faults."""

    record_samples: bool = Field(default=False, description="Write each step's sample ids to samples/rank-R.jsonl.")


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
