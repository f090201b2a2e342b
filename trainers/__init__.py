"""trainyard's trainers: distributed image classification, from an archive to a published model."""

__version__ = "0.1.0"
