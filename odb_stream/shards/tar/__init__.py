"""The tar format of shards: headers, the walk over an archive, and the grouping of its files into samples.

A sample is a run of neighbouring files that share a key: the path up to the first dot of the file name. The rest of the
name is the extension. ``a/b.0.jpg`` has the key ``a/b`` and the extension ``0.jpg``.
"""
