"""Sources of archives: each reads any range of bytes of one object that must not change."""

from pathlib import Path

from trainers.prepare.settings import Source as SourceConfig
from trainers.prepare.sources.base import Source, Traffic
from trainers.prepare.sources.path import PathSource
from trainers.prepare.sources.retry import Patience
from trainers.prepare.sources.secrets import DATASET, Signed, signed_address


def open_source(
    config: SourceConfig, traffic: Traffic, patience: Patience | None = None, signed: Signed = DATASET
) -> Source:
    """Open the object that the settings name, `signed` as it says where they may not hold that; raises UserError."""
    if config.kind == "http":
        # Each imported where it is needed: an archive on a volume needs no client of the network
        from trainers.prepare.sources.http import HttpSource

        return HttpSource(config.url, traffic, locate=lambda: signed_address(config.url, signed), patience=patience)
    if config.kind == "kaggle":
        from trainers.prepare.sources.kaggle import open_competition

        return open_competition(config.competition, traffic, patience)
    if config.kind == "kaggle-dataset":
        from trainers.prepare.sources.kaggle import open_dataset

        return open_dataset(config.dataset, traffic, patience)
    if config.kind == "objectstore":
        from trainers.prepare.sources.objectstore import ObjectSource

        return ObjectSource(
            config.url, traffic, endpoint=config.endpoint, anonymous=config.anonymous, patience=patience
        )
    return PathSource(Path(config.path), traffic)
