"""All settings of a preparation; the chart's schema is generated from them.

Files, flags and messages about mistakes work as for training (trainyard/config). Addresses are not shown in messages:
they may hold a signature.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainyard.config import json_schema
from trainyard.config.checking import refuse, validate
from trainyard.config.layers import Tree

# Where each kind of source keeps its address
ADDRESS_KEYS = {
    "http": "url",
    "kaggle": "competition",
    "kaggle-dataset": "dataset",
    "objectstore": "url",
    "path": "path",
}
OBJECT_STORES = ("s3", "gs", "az")
SEVERAL = re.compile(r"\*|\{[^{}]*,[^{}]*\}|[ ,;][a-z0-9]+://")  # a pattern, or a list of addresses
# Parts of an address that give its readers access: signatures of Amazon, Google, CloudFront and Azure, and tokens
SIGNED = {"x-amz-signature", "x-goog-signature", "signature", "sig", "token", "access_token", "api_key", "apikey"}


class SourceSettings(BaseModel):
    """Where the archive comes from. Exactly the key that belongs to `kind` is set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["http", "kaggle", "kaggle-dataset", "objectstore", "path"] = Field(
        description="http: an archive at a URL. kaggle: a competition's zip. kaggle-dataset: a dataset's zip. "
        "objectstore: an archive at s3://, gs:// or az://. path: an archive, or a folder of images, on a volume. "
        "An archive is a zip, or a tar, plain or packed by gzip, bzip2 or xz."
    )
    url: str = Field(
        default="",
        repr=False,
        description="For http: address on a server that answers range requests. For objectstore: s3://BUCKET/KEY, "
        "gs://BUCKET/KEY or az://CONTAINER/KEY.",
    )
    competition: str = Field(
        default="",
        description="For kaggle: the competition's short name as in its address.",
        pattern=r"^[A-Za-z0-9-]*$",
    )
    dataset: str = Field(
        default="",
        description="For kaggle-dataset: OWNER/NAME as in its address, or OWNER/NAME/versions/N for one version.",
        pattern=r"^$|^[A-Za-z0-9_-]+/[A-Za-z0-9_.-]+(/versions/[1-9][0-9]*)?$",
    )
    path: str = Field(default="", description="For path: the archive, or the folder that holds the layout.")
    endpoint: str = Field(
        default="",
        repr=False,
        description="For objectstore: address of a store other than Amazon's or Google's, such as MinIO.",
        pattern="^$|^https?://",
    )
    anonymous: bool = Field(default=False, description="For objectstore: read a public bucket, without credentials.")
    sha256: str = Field(
        default="",
        description="SHA-256 of the whole archive, in hexadecimal digits: it is read once more at first, and refused "
        "if it has another one. Not for folders.",
        pattern="^$|^[0-9a-f]{64}$",
    )

    @model_validator(mode="before")
    @classmethod
    def _kind_of_its_address(cls, data: Any) -> Any:
        """Set the kind that follows from the address, as the chart does, where none is set."""
        if not isinstance(data, dict) or "kind" in data:
            return data
        kinds = [kind for kind, key in ADDRESS_KEYS.items() if data.get(key)]
        if data.get("url") and str(data["url"]).partition("://")[0] in OBJECT_STORES:
            kinds = ["objectstore"]
        return {"kind": kinds[0], **data} if kinds else data

    @model_validator(mode="after")
    def _one_address(self) -> "SourceSettings":
        key = ADDRESS_KEYS[self.kind]
        if not getattr(self, key):
            refuse(f"source: kind '{self.kind}' needs the key '{key}'")
        if extra := [other for other in ADDRESS_KEYS.values() if other != key and getattr(self, other)]:
            refuse(f"source: kind '{self.kind}' takes '{key}' only, not '{extra[0]}'; remove it")
        if self.url and SEVERAL.search(self.url):
            refuse(
                "source.url: names several archives, and one is read; unpack them into one folder and make one tar of "
                "it (`tar -cf all.tar -C FOLDER .`), or put the folder on a volume and set source.path to it; plain "
                "tars may also be joined (`cat a.tar b.tar > all.tar`)"
            )
        if self.kind == "http":
            _check_url(self.url)
        if self.kind == "objectstore":
            _check_object(self.url)
            if self.endpoint:
                _check_url(self.endpoint, "endpoint")
        elif self.endpoint or self.anonymous:
            refuse(f"source: 'endpoint' and 'anonymous' belong to kind 'objectstore', not '{self.kind}'; remove them")
        return self

    def describe(self) -> dict[str, str]:
        """Return the origin of the data, without what may be secret in a signed address."""
        key = ADDRESS_KEYS[self.kind]
        address = str(getattr(self, key))
        if self.kind == "http":
            address = urlsplit(address)._replace(query="", fragment="").geturl()
        return {"kind": self.kind, key: address, **({"endpoint": self.endpoint} if self.endpoint else {})}


class Reencode(BaseModel):
    """How images are made smaller on their way into the shards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    resize: Annotated[int, Field(ge=32, le=8192)] = Field(
        description="Pixels of the shorter side; images that are no larger keep their bytes."
    )
    quality: Annotated[int, Field(ge=1, le=95)] = Field(default=90, description="JPEG quality of what is encoded.")


class Table(BaseModel):
    """Where labels stand in a CSV file, for layout 'csv'."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str = Field(
        default="labels.csv", min_length=1, description="The CSV file in the archive; the end of its path is enough."
    )
    folder: str = Field(default="", description="Where the images lie, seen from the CSV file, such as 'images/'.")
    suffix: str = Field(default="", description="What names in the CSV file lack, such as '.jpg'.")
    path_column: str = Field(default="file", min_length=1, description="Column with each image's path.")
    label_column: str = Field(default="label", min_length=1, description="Column with its class.")
    split_column: str = Field(
        default="", description="Column with its split: train, or val (also valid, validation). Empty: drawn by seed."
    )
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1, description="Without a split column: part of each class that becomes val."
    )
    ignored_splits: tuple[str, ...] = Field(default=(), description="Values of the split column to leave out: 'test'.")
    unlisted: Literal["fail", "leave_out"] = Field(
        default="fail", description="What to do about images in the folder that the CSV file does not list."
    )


class DatasetSettings(BaseModel):
    """The settings of a prepared folder. Defaults suit ImageNet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layout: Literal["imagenet", "imagefolder", "folders", "csv"] = Field(
        default="imagenet",
        description="imagenet: Kaggle's CLS-LOC layout with its CSV of validation labels. "
        "imagefolder: train/CLASS/* and val/CLASS/* (or valid, validation). folders: CLASS/*, of which 'val_fraction' "
        "becomes val. csv: a CSV file names each image's class; see the key 'csv'.",
    )
    val_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1,
        description="For layout 'folders': which part of each class becomes val, at least one image, drawn by the "
        "seed.",
    )
    csv: Table = Field(default=Table(), description="Where labels stand, for layout 'csv'.")
    class_file: str = Field(
        default="",
        description="A text in the archive that names classes for people: lines of 'CLASS NAME', or CSV 'CLASS,NAME'.",
    )
    class_names: dict[str, str] = Field(default={}, description="Names of classes for people; these win.")
    shard_mb: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=256, description="Size of a shard in megabytes (10^6 bytes), about."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        default=0, description="Seed of the one shuffle of the samples."
    )
    decode: Literal["sampled", "all", "none"] = Field(
        default="sampled",
        description="Which images are decoded as a check: about one of 100, all, or none. "
        "Decoded are in any case all that are no JPEGs, and JPEGs that cannot be made seekable. Checksums are always "
        "checked.",
    )
    undecodable: Literal["fail", "leave_out"] = Field(
        default="fail",
        description="What to do about images that cannot be decoded: fail and name them, or leave them out and list "
        "them in the manifest, which needs 'decode: all' or a re-encoding.",
    )
    convert: Literal["none", "png"] = Field(
        default="none",
        description="png: make PNGs, without loss of what training sees, of WebP, BMP and TIFF, and of the first "
        "image of a GIF. none: they are undecodable. Other formats always are.",
    )
    reencode: Reencode | None = Field(
        default=None, description="Make large images smaller, and JPEGs of the rest. Off by default."
    )
    seekable: bool = Field(
        default=True,
        description="Rewrite JPEGs without changing a pixel, with restart markers and tables of their own, so that "
        "training reads only what a crop needs: about 1.25 times as fast, for about 2 ms an image here. A complete "
        "folder stays as it is. See docs/data.md.",
    )
    skip: tuple[str, ...] = Field(
        default=(),
        description="Names of members of the archive to leave out, such as broken images; '*' in them stands for any "
        "characters: '*.webp'.",
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="Shards made at the same time, each with its own connection."
    )


class Preparation(DatasetSettings):
    """Everything that `trainyard prepare build` needs."""

    source: SourceSettings = Field(repr=False)
    out: Path = Field(description="The folder to prepare; its last part is the dataset's name.")

    @model_validator(mode="after")
    def _whole(self) -> "Preparation":
        if self.undecodable == "leave_out" and self.decode != "all" and not self.reencode:
            refuse("undecodable: 'leave_out' needs decode: 'all', so that each image is looked at")
        if self.source.kind == "path" and Path(self.source.path) in (self.out, *self.out.parents):
            refuse(f"out = '{self.out}': lies in the source's own folder {self.source.path}; choose another place")
        return self


def parse(data: Tree) -> Preparation:
    """Check settings; raises UserError, whose message reports each wrong key."""
    return validate(Preparation, data, "wrong settings of the preparation: ")


def schema() -> Tree:
    """Return the JSON schema of all settings, without references."""
    return json_schema.without_references(Preparation)


def _check_object(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in OBJECT_STORES or not parts.hostname or not parts.path.strip("/"):
        refuse("source.url: must be s3://BUCKET/KEY, gs://BUCKET/KEY or az://CONTAINER/KEY")
    if parts.username or parts.password:
        refuse("source.url: must not hold credentials: they belong in a Secret")


def _check_url(url: str, key: str = "url") -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        refuse(f"source.{key}: must start with http:// or https:// and name a host")
    if parts.username or parts.password:
        refuse(
            f"source.{key}: must not hold a user name or password: it is kept in a ConfigMap, which is no place for "
            "secrets"
        )
    if SIGNED & {name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)}:
        refuse(
            f"source.{key}: must not hold a signature or token: it is kept in a ConfigMap. Give the address without "
            "what follows the ?, and the whole of it as the key `url` of the Secret that global.secrets.http names, or "
            "`weights-url` for pretrained weights (here a file in http/ of the folder TRAINYARD_SECRETS)"
        )
