"""Reading and writing: shards, indexes and datasets; the only part of the package that touches files."""
