"""Settings of the model and of learning: model, batch, optimizer, schedule, loss, average, validation."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from trainyard.config.checking import refuse
from trainyard.config.sections.base import Fraction, Natural, Positive, Settings
from trainyard.core.named import current

BlurPool = Literal["none", "convs", "all"]
ONLY_SGD, ONLY_ADAPTIVE = ("momentum", "nesterov"), ("betas", "eps")


class ModelSettings(Settings):
    """The model."""

    name: Annotated[str, AfterValidator(current)] = Field(
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
    blur_pool: BlurPool = Field(
        default="none",
        description="Blur before the model halves the resolution, against aliasing. `convs`: before convolutions with "
        "a stride and at least 16 channels. `all`: within max pooling, too. Names and shapes of weights stay.",
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
        default="",
        description="Weights to start from: torchvision's by name (`IMAGENET1K_V2`, `ResNet50_Weights.IMAGENET1K_V2`), "
        "`timm` (the default ones of the timm model), an http(s), s3 or gs address, or the path of a .pth or "
        ".safetensors state dict or of a published/ folder. All but paths are fetched once beforehand, by the "
        "dataset's Job or `trainyard prepare weights`. Empty: none.",
    )
    pretrained_head: Literal["auto", "keep", "drop"] = Field(
        default="auto",
        description="The last linear layer of these weights. auto: kept if it fits the number of classes, else it "
        "starts at random. `keep`: it must fit. `drop`: it starts at random.",
    )
    pretrained_sha256: str = Field(
        default="",
        pattern="^$|^[0-9a-f]{64}$",
        description="SHA-256 of the weights, in hexadecimal digits: they are refused if they have another one. "
        "An address needs it unless its file name ends in a part of it, as in resnet50-11ad3fa6.pth.",
    )
    weights_dir: str = Field(
        default="",
        description="Folder of fetched weights; empty: `weights` beside data.dir (/data/weights on a cluster).",
    )
    weights_mirror: str = Field(
        default="",
        pattern="^$|^https?://",
        description="Address of a mirror that has the files of https://download.pytorch.org and https://huggingface.co "
        "under the same paths; it is asked in their place.",
    )
    freeze: str | list[str] = Field(
        default=[],
        description="Parameters that stay as they are: `backbone` (all but the head, the last linear layer), or a list "
        "of names of modules or parameters, in which * and ? stand for any text, such as [conv1, bn1, 'layer[12]']. A "
        "frozen BatchNorm keeps its statistics.",
    )
    channels_last: bool | None = Field(
        default=None,
        description="Use the channels_last memory format, which tensor cores need; unset: on GPUs, not on CPUs.",
    )
    compile: bool = Field(
        default=False,
        description="Compile the model with torch.compile, for training and validation. Smaller batches at the end of "
        "an epoch run as the model is written: no sample is left out, and nothing is compiled again.",
    )
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = Field(
        default="default",
        description="torch.compile's mode. `reduce-overhead` replays CUDA graphs, for small models and batches; "
        "`max-autotune` also tries out kernels, which takes minutes at the start.",
    )
    compile_cache: bool = Field(
        default=False,
        description="Keep what torch.compile makes in the run directory (`compiled/`), so that a restart on the same "
        "torch and kind of GPU does not compile again. Torch unpickles and runs what lies there: programs that may "
        "write to the run directory can then run code in the training pods.",
    )
    checkpointing: bool = Field(
        default=False,
        description="Gradient checkpointing: keep only the inputs of the model's blocks for backward and compute the "
        "rest again, for less memory and about a third more computing. The results stay.",
    )

    @property
    def frozen(self) -> list[str]:
        """The patterns of `freeze`."""
        return [self.freeze] if isinstance(self.freeze, str) and self.freeze else list(self.freeze)

    @property
    def compile_options(self) -> dict[str, Any]:
        """The options of torch.compile: a program for each shape, rather than a slower one for all."""
        return {"dynamic": False, "mode": self.compile_mode}

    def in_channels_last(self, on_gpu: bool) -> bool:
        """Whether images and weights lie in channels_last order, on a GPU or elsewhere."""
        return on_gpu if self.channels_last is None else self.channels_last


class BatchSettings(Settings):
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


class OptimizerSettings(Settings):
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
    no_decay: list[Literal["norm", "bias", "vector", "embedding"]] = Field(
        default=["norm", "bias"],
        description="Parameters without weight decay: `norm` (scale and shift of normalisation layers), `bias` (all "
        "other biases), `vector` (all others of one dimension, such as LayerScale's), `embedding` (class tokens and "
        "position embeddings of vision transformers).",
    )
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=1.0,
        description="Layer-wise learning rates: from the head down, each block of the model has this much of the rate "
        "of the one above it (as BEiT and timm have it); 1: the same for all.",
    )
    head_lr_scale: Annotated[float, Field(gt=0.0)] = Field(
        default=1.0, description="Factor for the learning rate of the head, the last linear layer."
    )

    @model_validator(mode="after")
    def _keys_belong_to_the_name(self) -> "OptimizerSettings":
        foreign, others = (ONLY_ADAPTIVE, "lamb and adamw") if self.name == "sgd" else (ONLY_SGD, "sgd")
        for key in foreign:
            value, default = getattr(self, key), type(self).model_fields[key].default
            if value != default:
                refuse(
                    f"optimizer.{key} = {value} with optimizer.name = {self.name!r}: it belongs to {others}; remove it "
                    f"or, where a recipe sets it, set it to {default}"
                )
        if self.nesterov and not self.momentum:
            refuse(
                "optimizer.nesterov = True with optimizer.momentum = 0.0: there is no momentum; set momentum, or "
                "nesterov to false"
            )
        return self


class ScheduleSettings(Settings):
    """Learning rate over the run."""

    name: Literal["cosine", "linear", "step", "constant"] = Field(
        default="cosine", description="Shape after the warmup."
    )
    every: Literal["step", "epoch"] = Field(
        default="step", description="Change the learning rate every step or every epoch."
    )
    warmup_epochs: Annotated[float, Field(ge=0.0)] = Field(default=5.0, description="Epochs of linear warmup.")
    warmup_start: Fraction = Field(
        default=0.0, description="Learning rate at the start of the warmup, as a fraction of the peak."
    )
    final: Fraction = Field(
        default=0.0, description="Learning rate at the end of a cosine or line, as a fraction of the peak."
    )
    milestones: list[Annotated[float, Field(gt=0.0)]] = Field(
        default=[30.0, 60.0, 80.0], description="Epochs at which `step` multiplies the learning rate by `gamma`."
    )
    gamma: Fraction = Field(default=0.1, description="Factor of `step`.")


class LossSettings(Settings):
    """The training loss."""

    name: Literal["cross_entropy", "bce"] = Field(
        default="cross_entropy", description="`bce`: binary cross-entropy of each class, averaged over classes."
    )
    bce_threshold: Fraction = Field(
        default=0.0, description="With bce, targets above this count as 1, others as 0; 0: as they are."
    )
    label_smoothing: Fraction = Field(default=0.0, description="Label smoothing of the training loss.")

    @model_validator(mode="after")
    def _threshold_has_targets(self) -> "LossSettings":
        if self.bce_threshold and self.name != "bce":
            refuse(
                f"loss.bce_threshold = {self.bce_threshold} with loss.name = {self.name!r}: only bce has targets to "
                "cut off; remove it, or set loss.name to bce"
            )
        if self.bce_threshold and self.label_smoothing:
            refuse(
                f"loss.label_smoothing = {self.label_smoothing} with loss.bce_threshold = {self.bce_threshold}: the "
                "threshold makes all targets 0 or 1 again; set one of them to 0"
            )
        return self


class EmaSettings(Settings):
    """Exponential moving average of the weights; what is validated and published, if kept."""

    decay: Fraction = Field(default=0.0, description="Share that the average keeps at an update; 0: no average.")
    every_steps: Positive = Field(default=1, description="Steps between updates, counted within an epoch.")
    adjust: Literal["none", "torchvision"] = Field(
        default="none",
        description="`torchvision`: 1 - decay is multiplied by global batch * every_steps / epochs (at most 1).",
    )

    @model_validator(mode="after")
    def _is_kept(self) -> "EmaSettings":
        if not self.decay and (self.every_steps != 1 or self.adjust != "none"):
            refuse("ema.decay = 0.0: no average is kept, but ema.every_steps or ema.adjust is set; set ema.decay too")
        return self


class ValidateSettings(Settings):
    """When the whole validation split is measured, each sample once."""

    every_epochs: Natural = Field(
        default=1, description="Epochs between validations; the last epoch is always one. 0: only then."
    )
    batch: Positive = Field(
        default=128, description="Samples per forward; the same on any number of processes, so that results are too."
    )
