"""The package's version."""

from importlib import metadata as _metadata

try:
    __version__ = _metadata.version("tenure")
except _metadata.PackageNotFoundError:  # run from a source tree
    __version__ = "0+source"
