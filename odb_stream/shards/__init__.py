"""Tar shards: their format, their index, reading, writing, checking, and the list of damaged samples."""
