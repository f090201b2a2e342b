"""Compares a folder that was prepared before with the settings, and refuses another source or other settings."""

from pathlib import Path

from trainyard.core.exits import UserError
from trainyard.prepare import converting, decoding, rewriting
from trainyard.prepare.plan import DatasetPlan, meaning
from trainyard.prepare.progress import say
from trainyard.prepare.settings import Preparation
from trainyard.shards import manifest as manifests
from trainyard.shards.manifest import Manifest

_OTHER_FOLDER = "give the dataset another name, or delete that folder"


def as_before(config: Preparation) -> Preparation:
    """Keep what a prepared folder decided about seekable images: their pixels are the same with and without."""
    if not manifests.exists(config.out):
        return config
    before = "seekable" in manifests.load(config.out).settings
    if before != config.seekable:
        say(f"{config.out} was prepared with seekable: {str(before).lower()}, and stays so")
    return config.model_copy(update={"seekable": before})


def complete(config: Preparation, *, look_only: bool = False) -> Manifest | None:
    """Return the manifest of a complete folder; raises UserError for one of another source or other settings."""
    if not manifests.exists(config.out):
        return None
    manifest = manifests.load(config.out)
    wanted = meaning(config)
    found = dict(manifest.settings)
    if (digest := config.source.sha256) and digest != (known := manifest.source.get("sha256")):
        raise UserError(
            f"source.sha256 = '{digest}', and {config.out} was prepared "
            f"{f'from an archive with {known}' if known else 'without comparing it'}: {_OTHER_FOLDER}"
        )
    beside = {"bytes", "directory_sha256", "sha256"}
    for key in (source := wanted.pop("source")).keys() | (manifest.source.keys() - beside):
        wanted[f"source.{key}"], found[f"source.{key}"] = source.get(key), manifest.source.get(key)
    # A complete folder stays valid with another image's encoder, converter or rewriter; only a repair would mix the two
    ignored = {"encoder", "converter", "seekable"}
    if "drawn" not in found:  # by an earlier version, which kept neither
        ignored |= {"val_fraction", "drawn"}
    keys = [key for key in {**wanted, **found} if key not in ignored]
    if differing := [key for key in keys if found.get(key) != wanted.get(key)]:
        changes = ", ".join(f"{key} was {found.get(key)!r} and is {wanted.get(key)!r}" for key in differing)
        raise UserError(f"{config.out} was prepared with other settings: {changes}; {_OTHER_FOLDER}")
    if manifest.left_out and config.undecodable == "fail":
        raise UserError(
            f"{config.out} was prepared without {len(manifest.left_out)} images that cannot be decoded, first "
            f"{manifest.left_out[0]}, and undecodable is 'fail': set 'leave_out', or {_OTHER_FOLDER}"
        )
    if problems := manifests.wrong_files(config.out, manifest):
        if not look_only:
            say(f"{problems[0]} ({len(problems)} wrong in all): preparing again what is missing")
        return None
    counts = " and ".join(f"{split.samples:,} {name}" for name, split in manifest.splits.items())
    say(f"{config.out} is complete ({counts} samples, sizes checked); nothing to do, nothing downloaded")
    return manifest


def refuse_other_archive(root: Path, plan: DatasetPlan) -> None:
    """Raise UserError before a repair from another archive, or by another encoder, than the folder was made with."""
    if not manifests.exists(root) or (manifest := manifests.load(root)).plan == plan.key:
        return
    if (before := manifest.settings.get("encoder")) and before != decoding.encoder():
        raise UserError(
            f"{root} was re-encoded by {before}, and here is {decoding.encoder()}, which gives other bytes: repair it "
            f"with the image that prepared it, or {_OTHER_FOLDER}"
        )
    if (before := manifest.settings.get("converter")) and before != converting.converter():
        raise UserError(
            f"{root} has images that were converted by {before}, and here is {converting.converter()}, which may "
            f"give other bytes: repair it with the image that prepared it, or {_OTHER_FOLDER}"
        )
    if (before := manifest.settings.get("seekable")) and before != rewriting.rewriter():
        raise UserError(
            f"{root} was made seekable by rewriter {before}, and here is {rewriting.rewriter() or 'none'}, which gives "
            f"other bytes: repair it with the image that prepared it, or {_OTHER_FOLDER}"
        )
    raise UserError(
        f"the archive is not the one that {root} was prepared from, or an earlier version took other files of it; "
        f"{_OTHER_FOLDER}"
    )
