"""The worker processes that prepare samples.

- ``pool``: the pool that a loader uses, its processes, the thread that listens to them, and the message about a worker
  that exited unexpectedly.
- ``process``: what runs inside a worker, and what is sent in both directions.
- ``spawnable``: what must hold before workers can start, checked before the first one does.
"""
