"""The loader in training loops and trainers: one module each, imported by name; none needs the others."""
