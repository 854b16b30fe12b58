"""Running the stages: from a record to a sample of known cost; its images are decoded last.

- ``records``: one record through the opener and the stages of its source, with a check of the result. This is what
  the workers run.
- ``chunk``: the results of many records in a few flat arrays, which are cheap to send between processes.
- ``decoding``: the images of a planned sample, from compressed files to what the model's family takes.
- ``clock``: how long each stage takes, for inspections.
"""
