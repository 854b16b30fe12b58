"""What flows: thin torchdata nodes in the order of the data, read to prefetch. No policy."""
