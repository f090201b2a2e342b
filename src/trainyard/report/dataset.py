"""dataset.html: what a prepared dataset holds, on one page that needs nothing else."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from trainyard.core.storage import storage
from trainyard.report.dataset_survey import Header, ListedImage, Survey, evenly, read, survey
from trainyard.report.page import Markup, card, note, page, table, tiles
from trainyard.report.thumbnails import STYLE, figure, shots
from trainyard.shards.manifest import WITHOUT_TRAINING

FILE = "dataset.html"
MOST_SHOWN = 48  # images of the contact sheet
MOST_GROUPS = 12  # of equal images
MOST_ODD = 24
MOST_CLASSES = 24  # shown before the rest is folded away
MOST_NAMES = 100
MOST_KINDS = 20  # of files that are no data
UNEVEN = 10  # the largest class over the smallest one
# What tables and programs write where a label is missing
_NO_LABELS = {"nan", "null", "none", "na", "n/a", "#n/a", "<na>", "nat", "undefined"}
# What names may differ in that are nearly the same: hidden characters, and what separates or fills up words and numbers
_HIDDEN = ("Cf", "Cc")
_NO_MATTER = re.compile(r"[\s_\-\ufe00-\ufe0f]|(?<=[0-9])\.0+$|(?<![0-9])\.|\.(?![0-9])|(?<![0-9.])0+(?=[0-9])")


def write(root: Path, to: Path | None = None) -> Survey:
    """Look through a prepared folder and write its page; raises UserError, StorageError and OSError."""
    found = survey(root)
    storage.write_file(to or root / FILE, render(found).encode())
    return found


def render(found: Survey) -> str:
    """Return the whole page. The same dataset gives the same page."""
    counts = [(f"{int(counts.sum()):,}", f"images in {split}") for split, counts in found.counts.items()]
    sizes = sum(split.bytes for split in found.manifest.splits.values())
    body = [
        STYLE,
        f'<h1>Dataset {html.escape(found.manifest.name)}</h1><p class="lead">{html.escape(_lead(found))}</p>',
        *(f'<div class="notice">{html.escape(text)}</div>' for text in notices(found)),
        tiles([*counts, (f"{found.manifest.classes:,}", "classes"), (f"{sizes / 1e6:,.1f} MB", "in shards")]),
        '<div class="cards">',
        _contact_sheet(found),
        _classes(found),
        _sizes(found.headers),
        _copies(found),
        _odd(found),
        _left_out(found.manifest.left_out),
        _ignored(found.manifest.ignored or {}),
        "</div>",
    ]
    return page(f"Dataset {found.manifest.name}", "".join(body))


def notices(found: Survey) -> list[str]:
    """Return what somebody should know before training."""
    texts = []
    if both := [one for one in found.copies if len({place.split for place in one}) > 1]:
        texts.append(
            f"{_images(len(both))} of train {_are(len(both))} in val too, byte for byte: the model will look better "
            "than it is."
        )
    if torn := [one for one in found.copies if len({place.label for place in one}) > 1]:
        texts.append(f"{_images(len(torn))} {_are(len(torn))} in more than one class.")
    if within := [one for one in found.copies if len({(place.split, place.label) for place in one}) == 1]:
        texts.append(f"{_images(len(within))} {_are(len(within))} there more than once in one class and split.")
    if len(found.keys) == 1:
        texts.append(
            f"There is one class alone, {found.keys[0]!r}, and nothing to tell it from: check the layout, and that "
            "each class has a folder or a word in the CSV file of its own."
        )
    for key in found.keys:
        if key.casefold() in _NO_LABELS:
            texts.append(f"Class {key!r} may be images whose label is missing.")
    if alike := near_names(found.keys):
        shown = "; ".join(" and ".join(map(repr, group)) for group in alike[:5])
        more = f" and {len(alike) - 5:,} more" if len(alike) > 5 else ""
        texts.append(f"Classes stay apart whose names are nearly the same: {shown}{more}.")
    for split, counts in found.counts.items():
        if counts.sum() and (missing := np.flatnonzero(counts == 0)).size:
            names = ", ".join(found.names[i] for i in missing[:5])
            texts.append(f"{len(missing)} of {len(counts)} classes have no image in {split}: {names}.")
    if absent := (found.manifest.ignored or {}).get(WITHOUT_TRAINING):
        named = found.manifest.classes + len(absent)
        texts.append(
            f"{len(absent):,} of {named:,} classes that the archive names have no training images (first "
            f"{min(absent)}): unpack it again, unless you chose {found.manifest.classes:,} of its classes."
        )
    train = found.counts.get("train", np.zeros(1, np.int64))
    if (filled := train[train > 0]).size and filled.max() >= UNEVEN * filled.min():
        texts.append(f"Classes are uneven: {filled.min():,} to {filled.max():,} images of a class in train.")
    if count := len(found.manifest.left_out):
        texts.append(f"{_images(count)} could not be decoded and {'was' if count == 1 else 'were'} left out.")
    return texts


def near_names(keys: Sequence[str]) -> list[list[str]]:
    """Return the groups of names that differ only in case, spaces, dots, hyphens, underscores and hidden characters.

    Or as numbers do that mean the same: `1`, `01` and `1.0`.
    """
    groups: dict[str, list[str]] = {}
    for key in keys:
        name = unicodedata.normalize("NFKC", key).casefold()
        bare = "".join(character for character in name if unicodedata.category(character) not in _HIDDEN)
        groups.setdefault(_NO_MATTER.sub("", bare), []).append(key)
    return [group for group in groups.values() if len(group) > 1]


def _lead(found: Survey) -> str:
    source = found.manifest.source
    origin = source.get("url") or source.get("path") or source.get("competition") or source.get("kind", "")
    looked = len(found.headers)
    total = sum(split.samples for split in found.manifest.splits.values())
    extent = "all images" if looked == total else f"{looked:,} of {total:,} images, evenly chosen"
    return f"from {origin}; counts and duplicates of all images, sizes and odd ones of {extent}"


def _contact_sheet(found: Survey) -> str:
    """Return some images of each class, or one of some classes."""
    chosen = _of_each_class([one.image for one in found.headers], found.manifest.classes)
    text = "The first images of each class, or of classes evenly chosen. Look for wrong labels and bad crops."
    return card("Contact sheet", _shots(found, [(one, "") for one in chosen]) + note(text), wide=True)


def _of_each_class(images: Sequence[ListedImage], classes: int) -> list[ListedImage]:
    """At most MOST_SHOWN images: equally many of each class, of each as many splits as there are."""
    chosen = {int(i) for i in evenly(classes, MOST_SHOWN)}
    each = max(1, MOST_SHOWN // max(1, len(chosen)))
    seen: Counter[int] = Counter()
    shown = []
    for one in images:
        if one.label in chosen and seen[one.label] < each:
            seen[one.label] += 1
            shown.append(one)
    return sorted(shown, key=lambda one: (one.label, one))


def _classes(found: Survey) -> str:
    total = sum(found.counts.values(), np.zeros(found.manifest.classes, np.int64))
    most = max(1, int(total.max(initial=1)))
    rows = []
    for i in np.argsort(-total, kind="stable"):
        bar = Markup(f'<span class="meter" style="width:{100 * total[i] / most:.0f}px"></span>')
        rows.append((found.names[i], *(f"{int(counts[i]):,}" for counts in found.counts.values()), bar))
    head = ("class", *(f"#{split}" for split in found.counts), "")
    if len(rows) <= MOST_CLASSES:
        return card("Classes", table(head, rows))
    ends = [*rows[: MOST_CLASSES // 2], *rows[-MOST_CLASSES // 2 :]]
    rest = f"<details><summary>All {len(rows):,} classes</summary>{table(head, rows)}</details>"
    return card("Largest and smallest classes", table(head, ends) + rest)


def _sizes(headers: Sequence[Header]) -> str:
    """Quantiles of sides and bytes, and the formats."""
    if not headers:
        return card("Sizes", table((), []))
    quantiles = (0, 5, 50, 95, 100)
    shorter = np.array([min(one.width, one.height) for one in headers])
    columns = {
        "shorter side, pixels": shorter,
        "longer side, pixels": np.array([max(one.width, one.height) for one in headers]),
        "kilobytes": np.array([one.bytes / 1e3 for one in headers]),
    }
    rows = [(name, *(f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in np.percentile(values, quantiles)))
            for name, values in columns.items()]  # fmt: skip
    kinds = Counter(f"{one.format}, {one.mode}" for one in headers)
    formats = "; ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    text = f"{formats}. A data.image_size above {np.median(shorter):,.0f} adds no detail to half of the images."
    return card("Sizes", table(("", "#smallest", "#5 %", "#median", "#95 %", "#largest"), rows) + note(text))


def _copies(found: Survey) -> str:
    if not found.copies:
        return card("Equal images", note("No two images have the same content."))
    first = sorted(found.copies, key=lambda one: (len({p.split for p in one}) == 1, len({p.label for p in one}) == 1))
    shown = [(one[0], f"{len(one)} times: {', '.join(_place(found, place) for place in one[:4])}") for one in first]
    text = (
        f"{len(found.copies):,} contents occur more than once, by SHA-256. First those in both splits, then those in "
        "several classes. Images that only look alike are not found."
    )
    return card("Equal images", _shots(found, shown[:MOST_GROUPS]) + note(text), wide=True)


def _odd(found: Survey) -> str:
    if not found.odd:
        return card(
            "Odd images", note("None: no long strips, none much smaller than the others, nearly empty or turned.")
        )
    kinds = Counter(_kind(text) for _, text in found.odd)
    chosen = [found.odd[int(i)] for i in evenly(len(found.odd), MOST_ODD)]
    text = "; ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()) + "."
    return card("Odd images", _shots(found, [(one.image, why) for one, why in chosen]) + note(text), wide=True)


def _kind(text: str) -> str:
    """Return what is odd, without its figure."""
    return "much longer than wide" if text.endswith("as long as wide") else text


def _left_out(names: Sequence[str]) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - MOST_NAMES:,} more (manifest.json has all)" if len(names) > MOST_NAMES else ""
    return card("Left out: cannot be decoded", note(", ".join(names[:MOST_NAMES]) + rest), wide=True)


def _ignored(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Files of the source that are no data, counted as the preparation's log counts them."""
    files = {why: kinds for why, kinds in counts.items() if why != WITHOUT_TRAINING}  # of which `notices` tells
    if not files:
        return ""
    rows = [
        (why, kind, f"{count:,}")
        for why, kinds in files.items()
        for kind, count in sorted(kinds.items(), key=lambda one: (-one[1], one[0]))[:MOST_KINDS]
    ]
    return card("Files that are no data", table(("why", "kind", "#files"), rows))


def _shots(found: Survey, chosen: Sequence[tuple[ListedImage, str]]) -> str:
    contents = read(found.root, [one for one, _ in chosen])
    figures = []
    for content, (one, why) in zip(contents, chosen, strict=True):
        remarks = [why] if why else []
        try:
            figures.append(figure(content, found.names[one.label], [*remarks, f"{one.split} {one.sample}"]))
        except (OSError, ValueError, SyntaxError):  # a header alone is no image
            continue
    return shots(figures)


def _place(found: Survey, one: ListedImage) -> str:
    return f"{one.split} {one.sample} ({found.names[one.label]})"


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
