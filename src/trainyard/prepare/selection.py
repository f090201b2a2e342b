"""Decides member by member what becomes a sample, so that nothing in a class's folder is lost in silence.

An image is what its name says is one, or its first bytes where the name says nothing (`1.jfif`, `2`, `3.jpg?w=300`).
What lies in a class's folder and is no image is an error that counts and names it, unless `skip` names it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection

from trainyard.core.exits import UserError
from trainyard.prepare import converting, names
from trainyard.prepare.archives.members import BARE, Member
from trainyard.prepare.layouts.base import Layout, MemberPlace, OutOfPlaceError, folders_above
from trainyard.prepare.listing import DECODED, Entry, Foreign, Listing, format_counts, formats_among
from trainyard.prepare.progress import say

# Entries whose first bytes are looked at together
_TOGETHER = 4096
_NAMED, _PATTERNS = 5, 20
_MOST_ARCHIVES = 10_000


class Skip:
    """The members that the setting `skip` leaves out: members by their names, and with `*` all whose names fit."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = {names.normalise_unicode(text): text for text in wanted}
        self._patterns = {
            text: re.compile(".*".join(map(re.escape, form.split("*"))), re.DOTALL)
            for form, text in self._wanted.items()
            if "*" in form
        }
        self._unseen = set(wanted)
        self.count = 0

    def names(self, entry: Entry) -> bool:
        """Whether a member is to be left out, by either of its names."""
        if not self._wanted:
            return False
        called = (entry.member.name, entry.raw, names.shown(entry.raw))
        found = [self._wanted[name] for name in dict.fromkeys(called) if name in self._wanted]
        found += [text for text, pattern in self._patterns.items() if pattern.fullmatch(entry.member.name)]
        self._unseen.difference_update(found)
        self.count += bool(found)
        return bool(found)

    def unseen(self) -> list[str]:
        """Return what was named and is not there; hidden and service files are left out in any case."""
        return sorted(text for text in self._unseen if not names.noise(names.clean_path(text.replace("\\", "/"))))


class Selection:
    """Takes the entries of a listing one by one, and hands on those that are samples."""

    def __init__(
        self,
        listing: Listing,
        layout: Layout,
        skip: Skip,
        add: Callable[[Entry, MemberPlace], None],
        converts: bool = False,
    ) -> None:
        self._listing, self._layout, self._skip, self._add = listing, layout, skip, add
        self._converts = converts  # whether other formats become PNGs
        self.skipped: set[str] = set()  # keys of members that the setting names
        self._doubtful: list[tuple[Entry, MemberPlace | OutOfPlaceError]] = []
        self._by_content: Counter[str] = Counter()  # images by their first bytes alone, by ending
        self._foreign = Foreign(listing.container)
        # No images in folders of classes, by place and ending; and elsewhere, by ending
        self._strays: dict[tuple[MemberPlace, str], list[str]] = {}
        self._outside: Counter[str] = Counter()
        self._held: set[tuple[str, ...]] = set()  # the parts of the names of classes' folders that hold files
        self._undecoded: set[MemberPlace] = set()  # where images of formats lie that are not decoded, by first bytes
        self._inner: dict[str, dict[str, None]] = {}  # by key, the folders in which its images lie
        self._unlabelled = 0
        self._archives: list[str] = []

    def take(self, entry: Entry) -> None:
        """Decide about the next entry; raises UserError for an image that has no place, is empty, or is too large."""
        if entry.noise:
            self._skip.names(entry)
            return
        name = entry.member.name
        place, kind = self._place(name), names.is_image(name)
        if isinstance(place, MemberPlace):
            self._held.add((place.root, place.below) if self._layout.loose else (place.root, place.below, place.key))
        if self._skips(entry, place):
            return
        if place is None:
            self._unlabelled += kind is True
        elif kind is not False and not (
            name.isascii() or names.is_utf8(place.key if isinstance(place, MemberPlace) else name)
        ):
            self._foreign.note(name)
        elif kind:
            self._sample(entry, place)
        elif kind is False:
            self._no_image(entry, place)
        else:
            self._doubtful.append((entry, place))
            if len(self._doubtful) == _TOGETHER:
                self._look()

    def finish(self, known: Collection[str]) -> None:
        """Say what was left out; `known` are the keys of the samples. Raises UserError."""
        self._look()
        if foreign := self._foreign.refusal():
            raise UserError(foreign)
        self._follow_links()
        empty = self._empty_classes(known)
        if unknown := self._skip.unseen():
            raise UserError(f"'skip' names {unknown[0]}, which is not in {self._listing.label}; correct the name")
        self._forget_folders_without_images()
        self._say()
        if self._strays:
            raise UserError(self._refusal(known))
        if empty:
            raise UserError(
                f"{self._listing.label} has folders beside those of classes that hold no files: {empty[0]} "
                f"({len(empty)} such); fill or remove them, or leave them out by 'skip': '{empty[0]}/*'"
            )
        if packed := self._packed_classes(known):
            where, slash, last = names.shown(packed[0]).rpartition("/")
            raise UserError(
                f"{self._listing.label} holds archives beside the folders of classes, each of which may be a class "
                f"that is lost: {where}{slash}{last} ({len(packed)} such); unpack them, or leave them out by 'skip': "
                f"'{where}{slash}*.{last.rpartition('.')[2]}'"
            )
        if self._archives and not known:
            raise UserError(
                f"{self._listing.label} holds no images for the layout that was set but archives: "
                f"{', '.join(sorted(self._archives)[:_NAMED])}; unpack them on a volume and give the folder as "
                "source.path, or pack the unpacked files as one archive"
            )
        tables = Counter({ending: count for ending, count in self._outside.items() if ending in names.TABLES})
        if tables and not known:
            raise UserError(
                f"{self._listing.label} holds no images for the layout that was set but tables: "
                f"{format_counts(tables)}; images in tables are not read: write each to a file in its class's folder, "
                "or train on them by data.dataset"
            )

    def count_ignored(self) -> dict[str, dict[str, int]]:
        """Return counts of the files that are no data, by why they are none and by kind."""
        found = {names.HIDDEN: self._listing.noise, names.OUTSIDE: self._outside}
        return {
            why: {names.shown(kind): count for kind, count in counts.items()} for why, counts in found.items() if counts
        }

    def fingerprint(self) -> str:
        """Return the container's, or another where earlier versions took other members or read other names."""
        found = self._listing.container.fingerprint
        if not self._listing.renamed and not self._by_content.total():
            return found
        return hashlib.sha256(f"{found} names".encode()).hexdigest()

    def _place(self, name: str) -> MemberPlace | OutOfPlaceError | None:
        try:
            return self._layout.place(name)
        except OutOfPlaceError as error:
            return error

    def _skips(self, entry: Entry, place: MemberPlace | OutOfPlaceError | None) -> bool:
        """Whether the setting names the member; its key is kept."""
        if not self._skip.names(entry):
            return False
        if isinstance(place, MemberPlace):
            self.skipped.add(place.key)
        return True

    def _sample(self, entry: Entry, place: MemberPlace | OutOfPlaceError) -> None:
        member = entry.member
        if isinstance(place, OutOfPlaceError):
            why = f": {place}" if str(place) else ""
            raise self._error(
                member, f"has no place in the layout{why}; check 'layout' and the archive, or name it under 'skip'"
            )
        if member.size == 0:
            raise self._error(member, "is empty; repair the archive, or name it under 'skip'")
        if member.size > converting.LARGEST_IMAGE or member.stored > converting.LARGEST_IMAGE:
            most = converting.LARGEST_IMAGE >> 20
            raise self._error(member, f"is larger than {most} MiB, which no image is; name it under 'skip'")
        self._layout.places.add((place.root, place.below))
        if place.inner:
            self._inner.setdefault(place.key, {})[place.inner] = None
        self._add(entry, place)

    def _error(self, member: Member, why: str) -> UserError:
        return UserError(f"{names.shown(member.name)} in {self._listing.label} {why}")

    def _no_image(self, entry: Entry, place: MemberPlace | OutOfPlaceError) -> None:
        name = entry.member.name
        ending = names.ending(name)
        if ending in names.ARCHIVES and len(self._archives) < _MOST_ARCHIVES:
            self._archives.append(name)
        if isinstance(place, MemberPlace):
            self._strays.setdefault((place._replace(lot=None), ending), []).append(names.shown(name))
        else:
            self._outside[ending] += 1

    def _look(self) -> None:
        """Tell by their first bytes which of the doubtful entries are images."""
        doubtful, self._doubtful = self._doubtful, []
        found = formats_among(self._listing.container, [entry.member for entry, _ in doubtful])
        for (entry, place), known in zip(doubtful, found, strict=True):
            image = known == DECODED or (self._converts and known in converting.FORMATS)
            (self._sample if image else self._no_image)(entry, place)
            self._by_content[names.ending(entry.member.name)] += image
            if known and not image and isinstance(place, MemberPlace):
                self._undecoded.add(place._replace(lot=None))

    def _follow_links(self) -> None:
        """Count links to nothing; raises UserError where they would be images."""
        lost = []
        for raw in self._listing.links:
            name = names.normalise_unicode(raw)
            place, kind = self._place(name), names.is_image(name)
            if self._skips(Entry(Member(name, 0, 0, 0, 0, 0, BARE), raw, "", 0), place):
                continue
            if place is None or kind is False or (kind is None and not self._in_class(place)):
                self._listing.noise["links to nothing"] += 1
            else:
                lost.append(name)
        if lost:
            raise UserError(
                f"{self._listing.label} holds {len(lost):,} links to images that are not there (first "
                f"{names.shown(lost[0])}); fetch them (git annex get, dvc pull), remove the links, or name them under "
                "'skip'"
            )

    def _empty_classes(self, known: Collection[str]) -> list[str]:
        """Return the folders without files that would be classes, by where they lie, and that `skip` does not name."""
        if self._layout.learns_first:  # whose classes are no folders
            return []
        held = {"/".join(filter(None, parts)).rstrip("/") for parts in self._held}
        around = {above for folder in held for above in folders_above(folder)}
        beside = self._around_classes()
        found = []
        for name in self._listing.folders():
            parent, _, last = name.rpartition("/")
            if parent in beside and last not in known and name not in held and name not in around:
                found.append(name)
        return [name for name in found if not self._skip.names(_folder_entry(name))]

    def _around_classes(self) -> set[str]:
        """Return the folders in which classes have theirs."""
        return {root if self._layout.loose else f"{root}/{below}".lstrip("/") for root, below in self._layout.places}

    def _packed_classes(self, known: Collection[str]) -> list[str]:
        """Return the archives beside folders of classes that are called as none of them, such as `train/owl.tar`.

        Where any folder may be a class, they are none unless another archive beside them is called as a class.
        """
        if self._layout.learns_first:
            return []
        around = self._around_classes()
        beside = [name for name in sorted(self._archives) if name.rpartition("/")[0] in around and _unpacked(name)]
        lost = [name for name in beside if _unpacked(name) not in known]
        return [] if self._layout.loose and len(lost) == len(beside) else lost

    def _in_class(self, place: MemberPlace | OutOfPlaceError) -> bool:
        """Whether the folder is a class's: where any may be one, it holds images."""
        if isinstance(place, OutOfPlaceError):
            return False
        return not self._layout.loose or (place.root, place.below) in self._layout.places

    def _forget_folders_without_images(self) -> None:
        """Forget folders without images that are no classes."""
        around = {root for root, _ in self._layout.places}
        for place, ending in list(self._strays):
            if not self._in_class(place) and not self._may_be_class(place, ending, around):
                self._outside[ending] += len(self._strays.pop((place, ending)))

    def _may_be_class(self, place: MemberPlace, ending: str, around: Collection[str]) -> bool:
        """Whether a folder without images may be a class, by what it holds and where it lies.

        Images in a format that is not read make a class anywhere; films, arrays and texts do in a folder beside other
        classes. `around` are the folders that hold classes.
        """
        if ending in names.FORMATS or place in self._undecoded:
            return True
        return place.root in around and ending not in names.BESIDE_CLASSES and ending != names.NO_ENDING

    def _say(self) -> None:
        parts = list(self._listing.remarks())
        if self._outside:
            parts.append(f"{names.OUTSIDE}: {format_counts(self._outside)}")
        if self._unlabelled:
            parts.append(f"images without a label: {self._unlabelled:,}")
        if self._skip.count:
            parts.append(f"named under 'skip': {self._skip.count:,}")
        if by_content := self._by_content.total():
            parts.append(f"{by_content:,} were taken for images by their first bytes")
        if parts:
            say(f"{self._listing.label}: {'; '.join(parts)}")
        if several := {key: list(inner) for key, inner in self._inner.items() if len(inner) > 1}:
            klass = min(several)
            say(
                f"{len(several):,} classes of {self._listing.label} have images in several folders, such as "
                f"{several[klass][0]} and {several[klass][1]}: each is taken as one class, {klass!r}"
            )

    def _refusal(self, known: Collection[str]) -> str:
        found: dict[str, list[str]] = {}
        for (_, ending), strays in self._strays.items():
            found.setdefault(ending, []).extend(strays)
        by_ending = {ending: sorted(found[ending]) for ending in sorted(found, key=lambda ending: -len(found[ending]))}
        counts = ", ".join(f"{len(strays):,} {ending} (first {strays[0]})" for ending, strays in by_ending.items())
        lost = sorted({place.key for place, _ in self._strays if self._layout.loose or not place.split} - set(known))
        vanished = f"; without them class {lost[0]!r} has no image ({len(lost)} such classes)" if lost else ""
        spelt = dict.fromkeys(name[-len(ending) :] for ending in by_ending for name in by_ending[ending])
        mixed = {ending for ending in by_ending if ending == names.NO_ENDING or self._by_content[ending]}  # with images
        patterns = [f"'*{ending}'" for ending in spelt if ending.lower() in by_ending.keys() - mixed]
        patterns += [f"'{name}'" for ending in by_ending if ending in mixed for name in by_ending[ending]]
        pngs = [ending for ending in by_ending if ending in names.CONVERTED and not self._converts]
        instead = f" (convert: 'png' makes PNGs of {', '.join(pngs)})" if pngs else ""
        more = f" and {len(patterns) - _PATTERNS} more" if len(patterns) > _PATTERNS else ""
        return (
            f"{self._listing.label} holds files in folders of classes that are neither JPEG nor PNG: {counts}{vanished}"
            f"; convert{instead} or remove them, or leave them out by 'skip': {', '.join(patterns[:_PATTERNS])}{more}"
        )


def _unpacked(name: str) -> str:
    """Return what a folder was called of which an archive was made: `owl` for `owl.tar.gz`, nothing for `a.csv.gz`."""
    inner = name.rpartition("/")[2].rpartition(".")[0]
    if names.ending(name) in names.PACKINGS:
        return inner[:-4] if inner.lower().endswith(".tar") else ""
    return inner


def _folder_entry(name: str) -> Entry:
    return Entry(Member(f"{name}/", 0, 0, 0, 0, 0, BARE), name, "", 0)
