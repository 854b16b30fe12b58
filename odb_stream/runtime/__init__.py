"""What runs: worker processes, hand-over between threads, and the time spent waiting."""
