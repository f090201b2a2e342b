"""The layouts by their names in the settings."""

from trainers.prepare.catalogue import Layout
from trainers.prepare.config import Config
from trainers.prepare.imagefolder import ImageFolder
from trainers.prepare.imagenet import ImageNet
from trainers.prepare.table import TableLayout


def layout_of(config: Config) -> Layout:
    """Make the layout that the settings name."""
    if config.layout == "csv":
        return TableLayout(config.csv, config.seed)
    return ImageNet() if config.layout == "imagenet" else ImageFolder()
