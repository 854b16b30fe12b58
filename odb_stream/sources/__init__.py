"""Where records come from: shards, datasets and mixes, which rank reads what, and what remains of an epoch."""
