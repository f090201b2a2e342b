"""Names of files in data sets: which are no data, which may be images, and text that decides labels.

Every layout, evaluation and prediction see names only as `listing.py` gives them, which is by these rules.
"""

import codecs
import unicodedata

from trainyard.core.exits import UserError

IMAGES = (".jpg", ".jpeg", ".png")  # how the names of images end, in lower case
# Images in formats that are not decoded: they are named, never dropped
FORMATS = (
    ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".j2k", ".jxl", ".jxr", ".svg", ".psd",
    ".dcm", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".pcx", ".dib", ".exr", ".dng", ".nef", ".cr2", ".arw",
)  # fmt: skip
CONVERTED = (".webp", ".gif", ".bmp", ".tif", ".tiff")  # of them, those of which `convert` makes PNGs
PACKINGS = (".gz", ".bz2", ".xz", ".zst")  # of one file each
ARCHIVES = (".zip", ".tar", ".tgz", ".7z", ".rar", *PACKINGS)
# What is no image whatever its first bytes are; files of any other ending are looked into
_OTHER_ENDINGS = """
.txt .md .rst .xml .json .jsonl .csv .tsv .yaml .yml .toml .html .htm .pdf .py .ipynb .sh .m .log .npy .npz .mat .pkl
.pt .pth .h5 .hdf5 .parquet .arrow .db .sqlite .mp4 .avi .mov .mkv .wav .mp3 .doc .docx .xls .xlsx
"""
# What lies beside classes in a folder of its own: annotations, documents and programs. No class consists of it
_BESIDE_CLASSES = """
.xml .json .jsonl .csv .tsv .yaml .yml .toml .md .rst .html .htm .pdf .doc .docx .py .ipynb .sh .m .log
"""
BESIDE_CLASSES = frozenset(_BESIDE_CLASSES.split())
# Tables in which other tools keep whole images
_TABLES = ".parquet .arrow .feather .tfrecord .tfrecords .rec .lmdb .mdb .beton .npz .npy .h5 .hdf5 .mat .pkl"
TABLES = frozenset(_TABLES.split())
_OTHERS = frozenset((*_OTHER_ENDINGS.split(), *ARCHIVES))
# What operating systems, file servers and notebooks leave in folders, in lower case; beside all that begins with a dot
_SERVICE_NAMES = """
__macosx @eadir @recycle @recently-snapshot #recycle #snapshot ~snapshot $recycle.bin lost+found
thumbs.db ehthumbs.db desktop.ini
"""
_SERVICE = frozenset((*_SERVICE_NAMES.split(), "system volume information", "icon\r"))
# What Windows keeps about each file that was downloaded is a file beside it once it was copied elsewhere
_ZONE = "Zone.Identifier"
_DOWNLOADED = (f":{_ZONE}", f"\uf03a{_ZONE}", f":{_ZONE}:$DATA")
NO_ENDING = "without a usual ending"
# Why files are no data
HIDDEN = "hidden and service files left out"
OUTSIDE = "no images, and in no class's folder"
OF_OTHER_CLASSES = "validation images left out, since train lacks their classes"


def noise(name: str) -> str:
    """Return the first part of a name that makes it no data, such as `.DS_Store` or `__MACOSX`, or nothing.

    What macOS keeps beside each file is `._*`, and what Windows keeps is `Zone.Identifier`: else there would be as many
    kinds as files.
    """
    for part in name.split("/"):
        if part[:1] == "." or part.lower() in _SERVICE:
            return "._*" if part[:2] == "._" else part
    return _ZONE if name.endswith(_DOWNLOADED) else ""


def clean_path(name: str) -> str:
    """Return a name without the parts that lead nowhere: `data/./cat//1.jpg` is `data/cat/1.jpg`."""
    if "./" not in name and "//" not in name:
        return name
    end = "/" if name.endswith("/") else ""
    return "/".join(part for part in name.split("/") if part not in ("", ".")) + end


def normalise_unicode(text: str) -> str:
    """Return the text in one Unicode form: macOS writes an accent as a character of its own."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def is_image(name: str) -> bool | None:
    """Whether a file is an image as far as its name tells; None where its first bytes must."""
    lower = name.lower()
    if lower.endswith(IMAGES):
        return True
    return False if ending(lower) in _OTHERS else None


def ending(name: str) -> str:
    """How a name ends, for counts: `.webp`, or that there is no such ending."""
    _, dot, last = name.rpartition("/")[2].rpartition(".")
    return f".{last.lower()}" if dot and last.isalnum() and len(last) < 10 else NO_ENDING


def is_utf8(name: str) -> bool:
    """Whether a name's bytes are UTF-8: where they are not, surrogates stand for them."""
    if name.isascii():
        return True
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(name: str) -> str:
    """Return a name for messages: bytes that are not UTF-8 as escapes."""
    if is_utf8(name):
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def encoding_of(text: bytes) -> str:
    """Guess the encoding of text that is not UTF-8: common Chinese characters are pairs of bytes beyond ASCII."""
    try:
        words = text.decode("gbk")
    except UnicodeDecodeError:
        return "latin1"
    return "gbk" if all(min(word.encode("gbk")) > 0x7F for word in words if not word.isascii()) else "latin1"


def decode_text(text: bytes, where: str) -> str:
    """Text that decides labels, in one Unicode form; raises UserError where it is not UTF-8."""
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{where} is UTF-16, not UTF-8; save it as UTF-8 (iconv -f utf16 -t utf8 FILE > NEW)")
    if b"\0" in (start := text[:64]):
        half = "be" if start[:1] == b"\0" else "le"
        raise UserError(
            f"{where} has zeros among its letters, as UTF-16 has, and is not UTF-8; save it as UTF-8 (iconv -f "
            f"utf-16{half} -t utf8 FILE > NEW)"
        )
    try:
        return normalise_unicode(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        encoding = encoding_of(text.splitlines()[line - 1] if text else text)
        raise UserError(
            f"{where} is not UTF-8 at line {line}; save it as UTF-8 (iconv -f {encoding} -t utf8 FILE > NEW, with the "
            "encoding that it has)"
        ) from None
