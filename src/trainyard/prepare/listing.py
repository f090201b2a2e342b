"""The members of a container as layouts, evaluation and prediction see them: the same rules for all of them.

Names are brought into one form (separators, parts `.`, Unicode), and what is no data is left out and counted.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from trainyard.data import limits
from trainyard.prepare import converting, formats, names
from trainyard.prepare.archives.folder import Folder
from trainyard.prepare.archives.members import LARGEST_HEADER, Container, Member, head, name_hash
from trainyard.prepare.archives.zip import Archive

DECODED = "JPEG or PNG"
_THREADS = 16
_SHOWN = 5


class Entry(NamedTuple):
    """A member under its name in one form, and what it is called in the container."""

    member: Member
    raw: str
    # What makes it no data, or nothing
    noise: str
    # Hash of the name before its Unicode form was changed: a name that appears twice is two of these
    identity: int


class Listing:
    """Goes through a container, as often as it is asked to."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.label = container.source.label
        # Of the last whole pass: what was left out, by what made it so, and whether names got another form
        self.noise: Counter[str] = Counter()
        self.renamed = False
        self._forms = 0
        self._folders: list[str] = []  # that end in a backslash
        self._first_form = ""
        self._separators: bool | None = None

    @property
    def links(self) -> Collection[str]:
        """Links to nothing, which only a folder can hold."""
        return self.container.links if isinstance(self.container, Folder) else ()

    def folders(self) -> Iterator[str]:
        """Yield the folders that are no noise, after a whole pass; not every archive names them."""
        for raw in (*self.container.folders, *self._folders):
            name = names.normalise_unicode(names.clean_path(f"./{raw}")).rstrip("/")
            if name and not names.noise(name):
                yield name

    def entries(self) -> Iterator[Entry]:
        """Every member, noise as well; a folder on a volume does not list its own."""
        self.noise = Counter(self.container.noise) if isinstance(self.container, Folder) else Counter()
        self.renamed, self._forms, self._folders = False, 0, []
        last_folder, folder_noise = "", ""
        for member in self.container.members():
            raw = member.name
            name = names.clean_path(raw.replace("\\", "/") if "\\" in raw and self._from_windows() else raw)
            if name.endswith("/") and not member.size:
                self._folders.append(name)
                continue
            identity = member.name_hash if name is raw else name_hash(name.encode("utf-8", "surrogateescape"))
            if not name.isascii() and (form := names.normalise_unicode(name)) != name:
                self._forms += 1
                name = self._first_form = form
            folder, _, last = name.rpartition("/")
            if folder != last_folder:  # neighbours are in one folder as a rule
                last_folder, folder_noise = folder, names.noise(folder)
            found = folder_noise or names.noise(last)
            if found:
                self.noise[found] += 1
            # Versions before these rules took such an image, or under another name
            self.renamed |= name is not raw or bool(found and names.is_image(name))
            yield Entry(member if name is raw else member._replace(name=name), raw, found, identity)

    def images(self) -> Iterator[Entry]:
        """Every image: by its name, or by its first bytes; and those of formats that are not decoded."""
        doubtful: list[Entry] = []
        for entry in self.entries():
            kind = None if entry.noise else names.is_image(entry.member.name)
            if kind or (not entry.noise and names.ending(entry.member.name) in names.FORMATS):
                yield entry
            elif kind is None and not entry.noise:
                doubtful.append(entry)
        found = formats_among(self.container, [entry.member for entry in doubtful])
        yield from (entry for entry, known in zip(doubtful, found, strict=True) if known)

    def remarks(self) -> Iterator[str]:
        """Yield what people should know about names, after a whole pass."""
        if self.noise:
            yield f"{names.HIDDEN}: {format_counts(self.noise)}"
        if self._separators:
            yield "backslashes were taken for the separators of folders"
        if self._forms:
            yield f"{self._forms:,} names in another Unicode form were taken as composed (NFC), last {self._first_form}"
        if isinstance(self.container, Archive) and (count := self.container.guessed):
            yield (
                f"{count:,} names are not UTF-8 and were read as code page 437, zip's own (last "
                f"{self.container.foreign}): if that is garbled, unpack the archive with the right encoding (`python3 "
                "-m zipfile --metadata-encoding gbk -e ARCHIVE new`) and give the folder"
            )

    def _from_windows(self) -> bool:
        """Whether a backslash separates folders: no name of the whole container has a slash then."""
        if self._separators is None:
            self._separators = not any("/" in member.name for member in self.container.members())
        return self._separators


def formats_among(container: Container, members: Collection[Member]) -> list[str]:
    """Tell the formats of members by their first bytes, with several requests at a time.

    They are DECODED, the name of another one, or nothing.
    """

    def look(member: Member) -> str:
        length = min(LARGEST_HEADER + member.stored, container.members_end - member.offset)
        start = head(container.source, member, length)
        if limits.is_jpeg(start) or limits.is_png(start):
            return DECODED
        return converting.format_of(start) or formats.other_format(start)

    if not members:
        return []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="look") as pool:
        return list(pool.map(look, members))


class Foreign:
    """Names that are not UTF-8 and would decide a label: two of them may look alike wherever they are written."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._count = 0
        self._first = ""

    def note(self, name: str) -> None:
        """Remember one."""
        self._first = min(self._first or name, name)
        self._count += 1

    def refusal(self) -> str:
        """Words about them with the command that renames them, or nothing if there are none."""
        if not self._count:
            return ""
        label = self._container.source.label
        encoding = names.encoding_of(self._first.encode("utf-8", "surrogateescape"))
        convert = f"convmv -r -f {encoding} -t utf8 --notest"
        if isinstance(self._container, Folder):
            remedy = f"rename them, e.g. `{convert} {label}`"
        else:
            again = f"mkdir new && tar -xf ARCHIVE -C new && {convert} new && tar -cf new.tar -C new ."
            remedy = f"pack them again, e.g. `{again}`"
        return (
            f"{self._count:,} names in {label} are not UTF-8 (first: {names.shown(self._first)}); {remedy}, with the "
            "encoding that they have"
        )


def format_counts(counts: Counter[str]) -> str:
    """Return counts for people, the most frequent first."""
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    more = f" and {len(counts) - _SHOWN} more kinds" if len(counts) > _SHOWN else ""
    return ", ".join(f"{count:,} {names.shown(what)}" for what, count in listed) + more
