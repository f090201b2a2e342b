"""The model: from torchvision or timm by name, or from the user's own function; initialised as configured.

Parameters and buffers keep their names, so that a saved state loads into the plain model.

Dropout and stochastic depth inside a model draw different numbers on a different number of processes. With them,
results are the same after a resume, but not on any number of processes.
"""

import difflib
import inspect
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from trainyard.config.sections.data import DataSettings
from trainyard.config.sections.learning import BlurPool, ModelSettings
from trainyard.core.exits import UserError
from trainyard.core.named import import_object
from trainyard.models import fitting, states, weights, zoo
from trainyard.models.batch_norm import leave_uncompiled, replace_batch_norm
from trainyard.models.blur import blur_pooling
from trainyard.models.fitting import find_head
from trainyard.models.freeze import freeze
from trainyard.models.synchronised import Sum

log = logging.getLogger("trainyard")

# torchvision's models for one size of image, and their parameter for it; all others take any size.
SIZED = {"vit_": "image_size", "maxvit_": "input_size"}
# torchvision's models that return several tensors in training.
AUXILIARY = ("googlenet", "inception_v3")
# Those that load no state dict without the version of what wrote it, which neither checkpoints nor safetensors keep
VERSIONED = "mnasnet"


def build(
    settings: ModelSettings,
    data: DataSettings,
    seed: int,
    classes: int,
    *,
    dtype: torch.dtype,
    total: Sum | None,
    resumes: bool = False,
) -> nn.Module:
    """Build the model from the seed, and freeze what `settings.frozen` names; raises UserError.

    `total` sums a tensor over processes, for global BatchNorm. `resumes`: a checkpoint will replace all weights, so
    pretrained ones are not read, and need not be there. That changes no random number: reading them draws none.
    """
    if data.size_start and (key := size_argument(settings.name)):
        raise UserError(
            f"data.size_start = {data.size_start} with model.name = {settings.name!r}: this model is made for one size "
            f"of images (its parameter {key}); remove data.size_start, or use a model that takes any size"
        )
    torch.manual_seed(seed)
    model = create(settings.name, classes, data.image_size, blur_pool=settings.blur_pool)
    if settings.conv_init != "default":
        init_convolutions(model, settings.conv_init)
    if settings.zero_init_last_bn:
        zero_init_last_bn(model)
    if settings.head_init_std:
        init_head(model, settings.head_init_std)
    if settings.pretrained and not resumes:
        load_weights(model, settings, data)
    replace_batch_norm(model, total if settings.batch_norm == "global" else None)
    freeze(model, settings.frozen)
    if settings.compile or "torch._dynamo" in sys.modules:  # or the user's own code compiles something
        leave_uncompiled()
    return model.to(dtype)


def create(name: str, classes: int, image_size: int = 224, blur_pool: BlurPool = "none") -> nn.Module:
    """Create the model of a name, for images `image_size` pixels high and wide; raises UserError.

    The size is passed on to models that are built for one (`size_argument`).
    """
    key = size_argument(name)
    model = _plain(name, classes, {key: (image_size, image_size) if key == "input_size" else image_size} if key else {})
    if blur_pool != "none":
        blur_pooling(model, blur_pool)
    return model


def size_argument(name: str) -> str:
    """Return the parameter by which a model is told the size of its images; empty for one that takes any size.

    Vision transformers of torchvision and timm have one, and the user's functions with a parameter `image_size`. Raises
    UserError.
    """
    kind, _, rest = name.partition(":")
    if not rest or kind == "torchvision":
        return next((key for prefix, key in SIZED.items() if (rest or kind).startswith(prefix)), "")
    if kind == "timm":
        described = import_timm(name).get_pretrained_cfg(rest)
        return "img_size" if described is not None and described.fixed_input_size else ""
    function = import_object(f"model.name = {name!r}", name)
    return "image_size" if "image_size" in inspect.signature(function).parameters else ""


def _plain(name: str, classes: int, size: dict[str, Any]) -> nn.Module:
    """Create a model as its library has it; `size` is what it is told of images."""
    kind, _, rest = name.partition(":")
    if not rest or kind == "torchvision":
        return _from_torchvision(rest or kind, classes, size)
    if kind == "timm":
        return _from_timm(rest, classes, size)
    model = import_object(f"model.name = {name!r}", name)(num_classes=classes, **size)
    if not isinstance(model, nn.Module):
        raise UserError(f"model.name = {name!r}: returned {type(model).__name__}; it must return a torch.nn.Module")
    return model


def _from_torchvision(name: str, classes: int, size: dict[str, Any]) -> nn.Module:
    get_model = zoo.get_model(name)
    if get_model is None:
        raise UserError(
            f"model.name = {name!r}: torchvision has no such classification model; "
            + _did_you_mean(name, zoo.names(), "torchvision.models.list_models()")
        )
    if name in AUXILIARY:
        raise UserError(
            f"model.name = {name!r}: trains with auxiliary outputs, which have no place in the loss here; use another "
            "model, or a function of your own that makes it with aux_logits=False"
        )
    model = _called(name, lambda: get_model(name, weights=None, num_classes=classes, **size))
    if name.startswith(VERSIONED):
        model._load_from_state_dict = partial(nn.Module._load_from_state_dict, model)  # type: ignore[method-assign]
    return model


def _from_timm(name: str, classes: int, size: dict[str, Any]) -> nn.Module:
    timm = import_timm(f"timm:{name}")
    if not timm.is_model(name):
        raise UserError(
            f"model.name = 'timm:{name}': timm {timm.__version__} has no such model; "
            + _did_you_mean(name, timm.list_models(), "timm.list_models()")
        )
    return _called(f"timm:{name}", lambda: timm.create_model(name, pretrained=False, num_classes=classes, **size))


def import_timm(name: str) -> Any:
    """Return the library timm, for the model of a name; raises UserError."""
    try:
        import timm
    except ImportError as error:
        raise UserError(
            f"model.name = {name!r}: timm is not installed ({error}); install it where training runs with "
            "`pip install timm` (our images have it), or use torchvision:NAME"
        ) from None
    return timm


def _called(name: str, make: Callable[[], Any]) -> nn.Module:
    """Make a model; raises UserError where it fails, as on a size of image that it cannot take."""
    try:
        model: nn.Module = make()
    except (AssertionError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(
            f"model.name = {name!r}: cannot be made ({' '.join(str(error).split())[:300]}); perhaps it takes "
            "images of another data.image_size, such as 224"
        ) from error
    return model


def _did_you_mean(name: str, known: list[str], listing: str) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {', '.join(close)}?" if close else f"see {listing}"


def zero_init_last_bn(model: nn.Module) -> None:
    """Start each residual block as the identity: the scale of its last BatchNorm is 0. Raises UserError."""
    from torchvision.models.resnet import BasicBlock, Bottleneck

    blocks = [module for module in model.modules() if isinstance(module, BasicBlock | Bottleneck)]
    if not blocks:
        raise UserError(
            "model.zero_init_last_bn = True: this model has no torchvision residual blocks; set it to false"
        )
    for block in blocks:
        last: Any = block.bn3 if isinstance(block, Bottleneck) else block.bn2
        nn.init.zeros_(last.weight)


def init_convolutions(model: nn.Module, mode: Literal["fan_in", "fan_out"]) -> None:
    """Start every convolution from He's normal distribution."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")


def init_head(model: nn.Module, std: float) -> None:
    """Start the last linear layer from a normal distribution, its bias from 0; raises UserError."""
    name, head = find_head(model)
    if not name:
        raise UserError(f"model.head_init_std = {std}: this model has no linear layer; set it to 0")
    nn.init.normal_(head.weight, std=std)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def load_weights(model: nn.Module, settings: ModelSettings, data: DataSettings) -> None:
    """Load the pretrained weights of the settings, once their hash is compared; raises UserError and InputError.

    Every process does so, since each reads the file itself.
    """
    path = weights.file_of(settings, data)
    try:
        weights.check_hash(settings, path)
    except OSError as error:
        raise UserError(f"model.pretrained = {str(path)!r} {states.refusal(error)}") from error
    load_pretrained(model, path, settings.pretrained_head)


def load_pretrained(model: nn.Module, path: Path, head: str = "auto") -> None:
    """Load a state dict whose names and shapes fit; `head` is as model.pretrained_head. Raises UserError."""
    try:
        chosen, said = fitting.fit(states.read(path), model, path, with_head=head == "keep")
    except states.refused_state() as error:
        raise UserError(f"model.pretrained = {str(path)!r} {states.refusal(error)}") from error
    if said:
        log.info("model.pretrained: %s, %s", path, said)
    state = chosen.state
    name = find_head(model)[0]
    fresh = {key: value for key, value in model.state_dict().items() if name and key.startswith(f"{name}.")}
    unlike = any(key not in state or state[key].shape != value.shape for key, value in fresh.items())
    if fresh and (head == "drop" or (head == "auto" and unlike)):
        found = state.get(f"{name}.weight")
        log.info(
            "model.pretrained: the head (%s) starts at random with %d outputs; these weights have %s",
            name, len(fresh[f"{name}.weight"]), "no head of that name" if found is None else f"{len(found)} of them",
        )  # fmt: skip
        state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")} | fresh
    elif fresh:
        log.info(
            "model.pretrained: the head (%s) is kept: its %d outputs count as the data's classes in their order; "
            "model.pretrained_head: drop starts it at random",
            name, len(fresh[f"{name}.weight"]),
        )  # fmt: skip
    model.load_state_dict(state)
