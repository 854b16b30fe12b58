"""The loader in training loops and trainers: a module for each trainer, imported by name, and what they share."""
