"""Moved to :mod:`odb_stream.checkpoint`; the names are still found here, with a DeprecationWarning."""

from odb_stream.deprecated import moved

__getattr__ = moved("odb_stream.resume", "odb_stream.checkpoint")
