"""trainyard: distributed image classification on Kubernetes, from an archive to a published model."""

__version__ = "0.1.0"
