"""What flows, in the order of the data from read to accumulate: these classes move data, and batching decides.

Read and PrepareRecords can restore a position and keep the contract of torchdata's ``BaseNode``. The others are plain
iterators: the position of a run spans all of them, so ``checkpoint`` saves and restores it as a whole.
"""
