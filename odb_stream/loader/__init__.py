"""The front: a Loader runs a Pipeline, an epoch at a time."""

from odb_stream.loader.loader import Loader as Loader
