"""The description of a trained model: its name, its classes, and the preparation of its images.

`config.json` of a published model holds it in the form of timm's model hubs, which `timm.create_model("local-dir:...")`
reads, with a part of our own (`trainyard`) for what that form has no key for.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from torch import Tensor, nn

from trainyard import __version__
from trainyard.config import Config
from trainyard.config.sections.learning import BlurPool
from trainyard.core.exits import UserError
from trainyard.core.storage import storage
from trainyard.models import small
from trainyard.models.factory import create
from trainyard.models.fitting import find_head, fit
from trainyard.models.weights import FILE, OWN, image_sizes

# torchvision's models that timm has under the same name, with the same parameter names and the same outputs
TIMM_TOO = (
    "densenet121", "densenet161", "densenet169", "densenet201", "resnet18", "resnet34", "resnet50", "resnet101",
    "resnet152", "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2",
)  # fmt: skip
# Models of ours that are timm's with other arguments: its name there, and these
WITH_ARGUMENTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "trainyard.models.small:resnet10": ("resnet18", small.TIMM),
}


@dataclass(frozen=True)
class Description:
    """The description of a trained model, without its weights; sizes are in pixels."""

    model: str  # as model.name
    keys: Sequence[str]  # classes as the dataset's archive names them; empty where they are not known
    names: Sequence[str]  # classes for people, in the same order
    built_for: int  # size of the images that the model was created for
    size: int  # height and width of a validation image
    resize: int  # the shorter side before the centre of that size is cut out
    mean: Sequence[float]
    std: Sequence[float]
    interpolation: str
    precision: str
    channels_last: bool | None  # None: on GPUs
    decoder: str
    batch: int  # samples per forward of a validation
    blur_pool: BlurPool = "none"  # as model.blur_pool

    def in_channels_last(self, on_gpu: bool) -> bool:
        """Whether images and weights lie in channels_last order, on a GPU or elsewhere."""
        return on_gpu if self.channels_last is None else self.channels_last

    @property
    def timm_name(self) -> str:
        """The architecture's name in timm; empty if timm has no model that computes the same."""
        kind, _, rest = self.model.rpartition(":")
        if self.blur_pool != "none":
            return ""
        if self.model in WITH_ARGUMENTS:
            return WITH_ARGUMENTS[self.model][0]
        if kind == "timm":
            return rest
        return rest if kind in ("", "torchvision") and rest in TIMM_TOO else ""


def describe(config: Config, keys: Sequence[str], names: Sequence[str]) -> Description:
    """Return the model of a run, whose dataset has these classes."""
    size, resize = config.data.val_sizes
    return Description(
        model=config.model.name,
        keys=list(keys),
        names=list(names),
        built_for=config.data.image_size,
        size=size,
        resize=resize,
        mean=config.data.mean,
        std=config.data.std,
        interpolation=config.augment.interpolation,
        precision=config.precision,
        channels_last=config.model.channels_last,
        decoder=config.data.decoder,
        batch=config.validate_.batch,
        blur_pool=config.model.blur_pool,
    )


def crop_share(size: int, resize: int) -> float:
    """Compute the `crop_pct` from which timm gets `resize` again, as floor(size / crop_pct)."""
    share = size / resize
    return share if math.floor(size / share) == resize else math.nextafter(share, 0.0)


def as_json(description: Description, model: nn.Module) -> dict[str, Any]:
    """Return what config.json holds; `model` is the plain model."""
    head_name, head = find_head(model)
    own_of_timm: Mapping[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    convolutions = (name for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    fixed = bool(own_of_timm.get("fixed_input_size"))
    keys, names = description.keys, description.names
    tree: dict[str, Any] = {
        "architecture": description.timm_name or description.model,
        "num_classes": len(names),
        "num_features": getattr(head, "in_features", None),
        "label_names": list(keys),
        "label_descriptions": dict(zip(keys, names, strict=True)),
        "pretrained_cfg": {
            "num_classes": len(names),
            "input_size": [3, description.size, description.size],
            "fixed_input_size": fixed,
            "interpolation": description.interpolation,
            "crop_pct": crop_share(description.size, description.resize),
            "crop_mode": "center",
            "mean": list(description.mean),
            "std": list(description.std),
            "first_conv": own_of_timm.get("first_conv", next(convolutions, None)),
            "classifier": own_of_timm.get("classifier", head_name or None),
        },
    }
    if fixed:
        tree["model_args"] = {"img_size": description.built_for}
    if description.model in WITH_ARGUMENTS:
        tree["model_args"] = WITH_ARGUMENTS[description.model][1]
    own = {key: value for key, value in asdict(description).items() if key in OWN_KEYS}
    own |= {"blur_pool": description.blur_pool} if description.blur_pool != "none" else {}
    return {**tree, OWN: {"version": __version__, **own}}


OWN_KEYS = ("model", "names", "built_for", "resize", "precision", "channels_last", "decoder", "batch")


def rebuild(found: Description, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the plain model with its weights, for inference, on the CPU and in the weights' own type.

    Raises UserError.
    """
    model = create(found.model, len(found.names), found.built_for, found.blur_pool)
    kinds = [value.dtype for value in weights.values() if value.is_floating_point()]
    try:
        chosen, _ = fit({(): dict(weights)}, model, Path(), with_head=True)
        model.to(kinds[0] if kinds else None).load_state_dict(chosen.state)
    except ValueError as error:
        raise UserError(
            f"the weights do not fit {found.model} with {len(found.names)} classes, for images of {found.built_for} "
            f"pixels: the file {error}"
        ) from error
    return model.eval()


def _known(blur_pool: Any) -> BlurPool:
    """Return it; raises ValueError where it is none."""
    if blur_pool not in get_args(BlurPool):
        raise ValueError(f"blur_pool is {blur_pool!r}, which this version does not know")
    found: BlurPool = blur_pool
    return found


def read(folder: Path) -> Description:
    """Return the description in a folder's config.json, ours or timm's own; raises UserError."""
    path = folder / FILE
    tree = storage.read_json(path)
    try:
        kept, own = tree["pretrained_cfg"], tree.get(OWN, {})
        keys = list(tree.get("label_names") or kept.get("label_names") or ())
        words = tree.get("label_descriptions") or kept.get("label_descriptions") or {}
        built_for, size, resize = image_sizes(kept, own)
        return Description(
            model=own.get("model", f"timm:{tree['architecture']}"),
            keys=keys,
            names=own.get("names", [words.get(key, key) for key in keys]),
            built_for=built_for,
            size=size,
            resize=resize,
            mean=[float(value) for value in kept["mean"]],
            std=[float(value) for value in kept["std"]],
            interpolation=kept["interpolation"],
            precision=own.get("precision", "fp32"),
            channels_last=own.get("channels_last"),
            decoder=own.get("decoder", "auto"),
            batch=int(own.get("batch", 128)),
            blur_pool=_known(own.get("blur_pool", "none")),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(
            f"{path} does not describe a model ({type(error).__name__}: {error}); give a run directory, a checkpoint's "
            "folder, or the published/ of a run of this version"
        ) from error
