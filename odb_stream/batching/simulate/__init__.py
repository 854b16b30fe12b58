"""What batching policies make of arrays of lengths: all ranks in one process, by the code that real ranks run."""
