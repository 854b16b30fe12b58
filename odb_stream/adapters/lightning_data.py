"""Moved to :mod:`odb_stream.adapters.lightning`; the names are still found here, with a DeprecationWarning."""

from odb_stream.deprecated import moved

__getattr__ = moved("odb_stream.adapters.lightning_data", "odb_stream.adapters.lightning")
