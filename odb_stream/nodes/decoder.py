"""Decoder: the images of planned steps become pixels in the worker pool; what proves broken leaves its group."""

from concurrent.futures import Future

from odb_stream.batching.cost import Footprint, Group
from odb_stream.errors import OdbStreamError
from odb_stream.nodes.drops import Drops
from odb_stream.nodes.waits import Waits
from odb_stream.prepare.decoding import Decoded
from odb_stream.sample import Drop, PreparedSample, Record, SampleRef
from odb_stream.workers.pool import WorkerPool

Burst = list[Group[PreparedSample] | None]
"""The groups of this rank in a few steps, None where it idles."""


class Decoder:
    """Decodes bursts of groups, and starts the next burst while it waits for one.

    A sample with a broken image counts as dropped on the rank that was to emit it, once its step has passed.
    """

    def __init__(self, pool: WorkerPool, footprint: Footprint, waits: Waits, drops: Drops) -> None:
        self._pool = pool
        self._footprint = footprint
        self._waits = waits
        self._drops = drops
        self._begun: dict[tuple[SampleRef, int], Future[Decoded | OdbStreamError]] = {}

    def decode(self, groups: Burst, upcoming: Burst, *, first: int) -> Burst | OdbStreamError:
        """The groups with pixels, None where no sample is left; or the error that stopped a worker.

        ``first`` is the index of the first group's step in its round.
        """
        try:
            # Without workers the pool decodes in this process: to start early would only delay the burst that is due.
            for group in (*groups, *(upcoming if self._pool.workers else ())):
                self._begin(group)
            return [self._group(group, step) for step, group in enumerate(groups, start=first)]
        except OdbStreamError as error:
            return error

    def decode_one(self, sample: PreparedSample) -> PreparedSample | None:
        """One sample with its pixels; None if an image is broken."""
        if not sample.images or sample.pixels is not None:
            return sample
        result = self._result(self._pool.submit_decode(sample))
        return None if isinstance(result, Drop) else sample._replace(pixels=result)

    def _begin(self, group: Group[PreparedSample] | None) -> None:
        for sample in group.samples if group is not None else ():
            if sample.images and (sample.ref, sample.epoch) not in self._begun:
                self._begun[sample.ref, sample.epoch] = self._pool.submit_decode(sample)

    def _group(self, group: Group[PreparedSample] | None, step: int) -> Group[PreparedSample] | None:
        if group is None or not any(sample.images for sample in group.samples):
            return group
        samples, sizes = [], []
        for sample, size in zip(group.samples, group.sizes, strict=True):
            begun = self._begun.pop((sample.ref, sample.epoch), None)
            # A sample without images was not submitted: it stays as it is.
            result = sample.pixels if begun is None else self._result(begun)
            if isinstance(result, Drop):
                shard, key = sample.origin or ("", "")
                self._drops.hold(step, result, Record(sample.ref, key, shard, epoch=sample.epoch))
                continue
            samples.append(sample if begun is None else sample._replace(pixels=result))
            sizes.append(size)
        return Group.of(tuple(samples), tuple(sizes), self._footprint) if samples else None

    def _result(self, future: Future[Decoded | OdbStreamError]) -> Decoded:
        with self._waits.on("workers"):
            return self._pool.wait_decoded(future)
