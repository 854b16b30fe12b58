"""What decides: pure functions and machines over integers. No torch, no clock, no threads, no I/O."""
