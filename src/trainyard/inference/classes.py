"""The data's classes and the model's: matched by name, refused where they do not fit."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from trainyard.core.exits import UserError
from trainyard.inference.inputs import Images
from trainyard.models.described import Description
from trainyard.prepare.layouts.base import nearest
from trainyard.prepare.names import normalise_unicode

SHOWN = 5


def match_labels(images: Images, found: Description) -> tuple[NDArray[np.int64], str]:
    """Return the label of each image as a class of the model, and a remark for people; raises UserError.

    Classes are the same if the archive's names for them are (`n01440764`), or those for people (`tench`). A model that
    knows more classes than the data has is measured on those.
    """
    labels = images.labels
    if labels is None:
        raise UserError(
            f"--data {images.where}: images lie outside of a folder named by their class, so nothing tells what is "
            "right; sort them into CLASS/ folders, or use `trainyard predict`"
        )
    if images.unclear:
        raise UserError(f"--data {images.unclear}")
    if not found.keys:
        return _by_number(images, labels, found)
    keys, names = [list(map(normalise_unicode, listed)) for listed in (found.keys, found.names)]
    if list(images.keys) == list(found.keys) or list(images.class_names) == list(found.names):
        return labels, ""
    index = {**_unique(names), **_unique(keys)}
    pairs = zip(map(normalise_unicode, images.keys), map(normalise_unicode, images.class_names), strict=True)
    places = [index.get(key, index.get(name)) for key, name in pairs]
    present = np.unique(labels)
    if lacking := [images.keys[int(label)] for label in present if places[int(label)] is None]:
        raise UserError(_refusal(images, found, lacking))
    if doubled := [place for place, count in Counter(places[int(label)] for label in present).items() if count > 1]:
        both = [key for key, place in zip(images.keys, places, strict=True) if place == doubled[0]]
        raise UserError(f"--data {images.where}: {' and '.join(both)} are the same class of the model; rename one")
    mapping = np.array([-1 if place is None else place for place in places], dtype=np.int64)
    order = "in another order" if len(present) == len(found.names) else f"{len(present)} of {len(found.names)}"
    return mapping[labels], f"classes matched by name: {order}"


def _by_number(images: Images, labels: NDArray[np.int64], found: Description) -> tuple[NDArray[np.int64], str]:
    if len(images.keys) != len(found.names):
        raise UserError(
            f"--data {images.where} has {len(images.keys)} classes, the model {len(found.names)}, and its names "
            "for them are not known (a checkpoint of an earlier version): use data with the same classes"
        )
    return labels, "the model's names for its classes are not known: taken in the data's order"


def _unique(names: object) -> dict[str, int]:
    """Names that occur once, with their places."""
    listed = list(names)  # type: ignore[call-overload]
    counts = Counter(listed)
    return {name: place for place, name in enumerate(listed) if counts[name] == 1}


def _refusal(images: Images, found: Description, lacking: list[str]) -> str:
    known = [*found.names, *found.keys]
    near = nearest(lacking[0], known)
    hint = f"did you mean {near!r}? " if near else ""
    shown = ", ".join(found.names[:SHOWN]) + (" ..." if len(found.names) > SHOWN else "")
    more = f" ({len(lacking)} such classes)" if len(lacking) > 1 else ""
    return (
        f"--data {images.where}: the model knows no class {lacking[0]!r}{more}; {hint}it has {len(found.names)}: "
        f"{shown}. Name the folders as the model's classes (config.json lists them), or leave those images out"
    )
