"""The user's own dataset and augmentation: `data.dataset` and `augment.function`, each `package.module:function`.

A dataset's function is called with split="train" and split="val". It returns an object with `len()` and `[i]`, as
torch's map-style datasets have; `[i]` gives (image, label). An image is a PIL image, a uint8 tensor (3, height,
width), or the bytes of an encoded image, which `data.decoder` decodes; bytes are fastest. An attribute `classes`
names the classes. Several threads call `[i]` at once.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainyard.core.exits import ExitError, UserError
from trainyard.core.named import import_object
from trainyard.core.storage import storage
from trainyard.data.plain import to_rgb
from trainyard.data.sampler import Ids


class UserDataset:
    """One split: `labels` (-1 where a sample was not read yet), `class_names`, and `read`."""

    def __init__(self, name: str, split: str, dataset: Any, class_names: list[str]) -> None:
        self.class_names = class_names
        self.labels: NDArray[np.int64] = np.full(len(dataset), -1, dtype=np.int64)
        self._dataset = dataset
        self._key = f"data.dataset = {name!r}"
        self._split = split

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.labels)

    def name(self, sample: int) -> str:
        """Return a sample's name in messages."""
        return f"{self._key}: sample {sample} of {self._split}"

    def read(self, ids: Ids) -> list[Any]:
        """Return the images of some samples: bytes or uint8 tensors; their labels are kept."""
        return [self._read(int(sample)) for sample in ids]

    def _read(self, sample: int) -> Any:
        try:
            item = storage.perform(self.name(sample), operator.getitem, self._dataset, sample)
        except ExitError:
            raise
        except Exception as error:
            raise UserError(f"{self.name(sample)} cannot be read ({type(error).__name__}: {error})") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UserError(f"{self.name(sample)} is {_kind(item)}; it must be a pair (image, label)")
        image, label = item
        number = _whole_number(label)
        if number is None or not 0 <= number < len(self.class_names):
            raise UserError(
                f"{self.name(sample)} has label {label!r}; it must be a whole number from 0 to "
                f"{len(self.class_names) - 1} (as many as `classes` of the dataset, or model.num_classes)"
            )
        self.labels[sample] = number
        return self._checked(image, sample)

    def _checked(self, image: Any, sample: int) -> Any:
        if isinstance(image, bytes):
            return image
        if hasattr(image, "convert"):  # a PIL image
            try:
                return torch.from_numpy(np.array(to_rgb(image))).permute(2, 0, 1)
            except ValueError as error:
                raise UserError(f"{self.name(sample)} is an image of mode {image.mode} ({error})") from None
        is_uint8 = isinstance(image, torch.Tensor) and image.dtype == torch.uint8
        if is_uint8 and image.dim() == 3 and image.shape[0] == 3 and image.numel():
            return image
        raise UserError(
            f"{self.name(sample)} is {_kind(image)}; it must be a PIL image, a uint8 tensor of shape "
            "(3, height, width), or the bytes of an encoded image"
        )


def open_dataset(name: str, split: str, num_classes: int) -> UserDataset:
    """Call the user's function for one split, and check what it returns; raises UserError."""
    key = f"data.dataset = {name!r}"
    make = import_object(key, name)
    try:
        dataset = make(split=split)
    except Exception as error:
        raise UserError(f"{key}: called with split={split!r}, it failed ({type(error).__name__}: {error})") from error
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UserError(f"{key}: returned {_kind(dataset)}; it must have len() and [i], as torch's map-style datasets")
    if not len(dataset):
        raise UserError(f"{key}: its split {split!r} is empty")
    names = [str(entry) for entry in getattr(dataset, "classes", None) or []]
    if not names and not num_classes:
        raise UserError(f"model.num_classes = 0: {key} has no `classes` to count; set model.num_classes")
    return UserDataset(name, split, dataset, names or [f"class {index}" for index in range(num_classes)])


def augmentation(name: str) -> Callable[[torch.Tensor, np.random.Generator], torch.Tensor]:
    """Return the user's function of an image (3, size, size), uint8, and its random numbers; raises UserError."""
    key = f"augment.function = {name!r}"
    function = import_object(key, name)

    def change(image: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        shape = image.shape
        try:
            made = function(image, generator)
        except Exception as error:
            raise UserError(f"{key}: it failed ({type(error).__name__}: {error})") from error
        if not isinstance(made, torch.Tensor) or made.dtype != torch.uint8 or made.shape != shape:
            raise UserError(f"{key}: returned {_kind(made)}; it must return a uint8 tensor of shape {tuple(shape)}")
        return made

    return change


def _whole_number(label: Any) -> int | None:
    try:
        return int(label) if int(label) == label else None
    except (TypeError, ValueError):
        return None


def _kind(thing: Any) -> str:
    shape = f" of {thing.dtype} and shape {tuple(thing.shape)}" if isinstance(thing, torch.Tensor) else ""
    return f"{type(thing).__name__}{shape}"
