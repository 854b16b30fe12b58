"""Moved to :mod:`odb_stream.tiny_model`; the names still work here, with a DeprecationWarning."""

from odb_stream.deprecated import moved

__getattr__ = moved("odb_stream.cli.tiny_model", "odb_stream.tiny_model")
