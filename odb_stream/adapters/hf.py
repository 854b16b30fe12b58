"""Moved to :mod:`odb_stream.adapters.huggingface`; the names are still found here, with a DeprecationWarning."""

from odb_stream.deprecated import moved

__getattr__ = moved("odb_stream.adapters.hf", "odb_stream.adapters.huggingface")
