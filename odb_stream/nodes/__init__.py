"""What flows, in the order of the data from read to accumulate: these classes move data, and batching decides.

Read and PrepareRecords can restore a position and keep the contract of torchdata's ``BaseNode``. The others are plain
iterators: where a run stands spans all of them, so its state is taken and restored as a whole, by ``checkpoint``.
"""
