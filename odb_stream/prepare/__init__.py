"""Runs the stages on records: from a record to a sample of known cost, by the chunk, and its images decoded last."""
