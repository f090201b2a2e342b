"""The settings of a preparation: one validated model, from which also the chart's schema is generated."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainers.exits import UserError

# Where each kind of source keeps its address
ADDRESS_KEYS = {"http": "url", "kaggle": "competition", "path": "path"}


class Source(BaseModel):
    """Where the archive comes from. Exactly the key that belongs to `kind` is set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["http", "kaggle", "path"] = Field(
        description="http: a zip at a URL. kaggle: a competition's zip. path: a zip that is already on a volume."
    )
    url: str = Field(default="", description="For http: address of a zip on a server that answers range requests.")
    competition: str = Field(
        default="",
        description="For kaggle: the competition's short name as in its address.",
        pattern=r"^[A-Za-z0-9-]*$",
    )
    path: str = Field(default="", description="For path: the zip file.")

    @model_validator(mode="after")
    def _one_address(self) -> "Source":
        key = ADDRESS_KEYS[self.kind]
        if not getattr(self, key):
            raise ValueError(f"kind '{self.kind}' needs the key '{key}'")
        if extra := [other for other in ADDRESS_KEYS.values() if other != key and getattr(self, other)]:
            raise ValueError(f"kind '{self.kind}' takes '{key}' only, not '{extra[0]}'")
        if self.kind == "http":
            _check_url(self.url)
        return self

    def describe(self) -> dict[str, str]:
        """Say where the data came from, without what may be secret in a signed address."""
        key = ADDRESS_KEYS[self.kind]
        address = str(getattr(self, key))
        if self.kind == "http":
            address = urlsplit(address)._replace(query="", fragment="").geturl()
        return {"kind": self.kind, key: address}


class Settings(BaseModel):
    """What may be chosen about a prepared folder. Defaults suit ImageNet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layout: Literal["imagenet", "imagefolder"] = Field(
        default="imagenet",
        description="imagenet: Kaggle's CLS-LOC layout with its CSV of validation labels. "
        "imagefolder: train/CLASS/* and val/CLASS/*.",
    )
    shard_mb: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=256, description="Size of a shard in megabytes (10^6 bytes), about."
    )
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        default=0, description="Seed of the one shuffle of the samples."
    )
    decode: Literal["sampled", "all", "none"] = Field(
        default="sampled",
        description="Which pictures are decoded as a check: about one of 100, all, or none. "
        "Checksums are always checked.",
    )
    skip: tuple[str, ...] = Field(
        default=(), description="Names of members of the archive to leave out, such as broken pictures."
    )
    workers: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="Shards made at the same time, each with its own connection."
    )


class Config(Settings):
    """Everything that `python -m trainers.prepare build` needs."""

    source: Source
    out: Path = Field(description="The folder to prepare; its last part is the dataset's name.")

    def meaning(self) -> dict[str, Any]:
        """Return what decides over the bytes of the result: not the number of workers or how much is decoded."""
        chosen = self.model_dump(mode="json", include={"layout", "shard_mb", "seed", "skip"})
        return {**chosen, "source": self.source.describe()}


def parse(data: object) -> Config:
    """Validate settings; the message names each wrong key."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        ]
        raise UserError("wrong settings of the preparation: " + "; ".join(lines)) from None


def read(path: Path) -> object:
    """Read a JSON or YAML file of settings, not validated yet."""
    import yaml

    try:
        text = path.read_text()
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}; name a file of settings with --config") from None
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is neither JSON nor YAML: {error}") from None


def schema() -> dict[str, Any]:
    """Return the JSON schema of all settings."""
    return Config.model_json_schema()


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("'url' must start with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ValueError(
            "'url' must not hold a user name or password: it is kept in a ConfigMap, which is no place for secrets"
        )
