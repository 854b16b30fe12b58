"""The command line: one module a command, and ``main`` that puts them together."""
