"""The dataset, and how images are augmented."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainyard.config.checking import refuse
from trainyard.config.sections.base import Fraction, Natural, Positive, Range, Settings, Triple


class DataSettings(Settings):
    """The dataset, and how images are read and cropped."""

    dir: str = Field(
        default="",
        description="Prepared dataset (the folder with manifest.json). `sample`: the sample set of real images, "
        "prepared on first use. `synthetic`: generated images, for measuring speed.",
    )
    image_size: Positive = Field(
        default=224,
        description="Height and width of a training image, in pixels; with size_start, of the run's last epochs.",
    )
    size_start: Natural = Field(
        default=0,
        description="Height and width of a training image in the first epochs, in pixels; the size then grows to "
        "image_size. 0: image_size in all epochs.",
    )
    size_ramp: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = Field(
        default=[0.4, 0.8], description="Shares of the run's epochs between which the size grows with each epoch."
    )
    size_multiple: Positive = Field(
        default=32, description="Sizes between size_start and image_size are rounded to a multiple of this, in pixels."
    )
    val_image_size: Natural = Field(default=0, description="Height and width of a validation image; 0: as image_size.")
    val_resize: Natural = Field(
        default=0,
        description="Validation images are resized to this shorter side, then centre-cropped; 0: 8/7 of their size.",
    )
    dataset: str = Field(
        default="",
        description="A dataset of your own instead of data.dir: `package.module:function`, called with split='train' "
        "and split='val'; see docs/data.md.",
    )
    decoder: Literal["auto", "native", "torchvision", "pillow"] = Field(
        default="auto",
        description="What decodes images. `native` decodes only the area that is used; auto: the first of native, "
        "torchvision and pillow that is here. Pixels differ a little, so all processes must have the same.",
    )
    workers: Natural | None = Field(
        default=None,
        description="Decoding threads per process. 0: the cores that this process may use (its affinity and its "
        "container's limit), divided by the processes on the node; unset: 0 on GPUs, 4 on CPUs.",
    )
    prefetch: Positive = Field(default=2, description="Batches per process prepared ahead.")
    readers: Positive = Field(
        default=16, description="Reading threads per process: how many reads storage has to answer at once."
    )
    readahead: Natural = Field(
        default=1, description="Batches per process read ahead of those; 0: the threads that decode read, too."
    )
    mean: Triple = Field(
        default=[0.485, 0.456, 0.406], description="Mean of each channel, subtracted (images are 0 to 1)."
    )
    std: Triple = Field(default=[0.229, 0.224, 0.225], description="Standard deviation of each channel, divided by.")
    synthetic_samples: Positive = Field(
        default=1280, description="Training samples of the synthetic set; validation has 1/5."
    )

    def threads(self, on_gpu: bool) -> int:
        """Return the number of decoding threads, 0 for as many as there are cores: a GPU starves on fewer."""
        return (0 if on_gpu else 4) if self.workers is None else self.workers

    @property
    def val_sizes(self) -> tuple[int, int]:
        """Size of a validation image, and length of the shorter side before the crop, in pixels."""
        size = self.val_image_size or self.image_size
        return size, self.val_resize or round(size * 8 / 7)

    @model_validator(mode="after")
    def _size_grows(self) -> "DataSettings":
        if self.size_start > self.image_size:
            refuse(
                f"data.size_start = {self.size_start}: larger than data.image_size = {self.image_size}, to which the "
                "size grows; set it to a smaller size, or to 0 for image_size in all epochs"
            )
        if self.size_ramp[0] > self.size_ramp[1]:
            refuse(f"data.size_ramp = {self.size_ramp}: the first number must not be larger than the second; swap them")
        return self

    @model_validator(mode="after")
    def _centre_lies_inside(self) -> "DataSettings":
        size, shorter = self.val_sizes
        if shorter < size:
            refuse(
                f"data.val_resize = {shorter}: smaller than the {size} pixels cut out of it; set it to {size} or more, "
                "or to 0 for 8/7 of them"
            )
        return self


class AugmentSettings(Settings):
    """Random changes to training images; a pure function of (seed, epoch, sample)."""

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
        default="bilinear", description="How images are resized, in training and in validation; always antialiased."
    )
    policy: Literal["none", "trivial", "rand", "rand_increasing"] = Field(
        default="none",
        description="Changes of shape and colour, after the flip. `trivial`: TrivialAugment Wide. `rand`: RandAugment, "
        "both as torchvision has them. `rand_increasing`: timm's RandAugment whose ops all grow with the magnitude "
        "(its rand-mM-mstd0.5-inc1).",
    )
    policy_ops: Positive = Field(default=2, description="Operations per image of `rand` and `rand_increasing`.")
    policy_magnitude: Annotated[int, Field(ge=0, le=30)] = Field(
        default=9, description="Strength of `rand` (0 to 30) and `rand_increasing` (0 to 10)."
    )
    erase: Fraction = Field(default=0.0, description="Probability that a random rectangle is erased (set to the mean).")
    function: str = Field(
        default="",
        description="An augmentation of your own, after all others: `package.module:function`, called with a uint8 "
        "tensor (3, size, size) and the sample's random numbers; see docs/data.md.",
    )
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

    @property
    def unit(self) -> int:
        """How many neighbours in the global batch must stay together: 2 with mixup or CutMix, else 1."""
        return 2 if self.mixup or self.cutmix else 1

    @model_validator(mode="after")
    def _within_bounds(self) -> "AugmentSettings":
        for key, pair in (("augment.scale", self.scale), ("augment.ratio", self.ratio)):
            if pair[0] > pair[1]:
                refuse(f"{key} = {pair}: the first number must not be larger than the second; swap them")
        if self.policy == "rand_increasing" and self.policy_magnitude > 10:
            refuse(
                f"augment.policy_magnitude = {self.policy_magnitude} with augment.policy = 'rand_increasing': that "
                "goes from 0 to 10; use a smaller one, or `rand`, which goes to 30"
            )
        return self
