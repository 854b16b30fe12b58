"""The worker processes that prepare samples: a pool of them, what runs inside, and how one that ends is reported."""
