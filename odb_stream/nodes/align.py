"""Align: drives this rank's program over the transport, so that all ranks make the same steps; yields these."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from odb_stream.batching.cost import Counts, Group, Integers
from odb_stream.batching.messages import Decode, Deliver, Exchange, Gather
from odb_stream.batching.program import Program
from odb_stream.batching.totals import StepTotals, loss_scale
from odb_stream.checkpoint.codec import encode
from odb_stream.checkpoint.state import AccumulationState, Place, PreEncoded, RoundPlace, RoundState
from odb_stream.errors import OdbStreamError
from odb_stream.nodes.decoder import Decoder
from odb_stream.nodes.mixed_modality import DummyRule
from odb_stream.nodes.waits import Waits
from odb_stream.nodes.wire_format import decode_groups, encode_groups
from odb_stream.ranks.transport import Left, Transport
from odb_stream.sample import IGNORED_LABEL, PreparedSample, SampleRef, StepInfo

logger = logging.getLogger(__name__)


class Step(NamedTuple):
    """One step of this rank: its samples in batch order, and what the training loop must know of it.

    ``totals`` are over all ranks. ``place`` is where the run continues after the step; ``ends_epoch`` marks the step at
    which a quota is reached. ``accumulation`` is what is left of an accumulation window after it.
    """

    samples: tuple[PreparedSample, ...]
    info: StepInfo
    totals: StepTotals
    place: RoundPlace
    ends_epoch: bool
    accumulation: AccumulationState | None = None


class Align(Iterator[Step]):
    """A plain iterator of steps. Runs in the background thread; the only place that talks to other ranks.

    The time that gathers and exchanges take is counted in ``waits``. ``moved_in`` and ``moved_out`` count the samples
    that came from and went to other ranks, those before a resume included.
    """

    def __init__(
        self,
        program: Program[PreparedSample],
        transport: Transport,
        decoder: Decoder,
        *,
        pad_token: int,
        dummy: DummyRule | None,
        epoch: int,
        waits: Waits,
        moved_in: int = 0,
        moved_out: int = 0,
    ) -> None:
        self._waits = waits
        self._decoder = decoder
        self._dummy = dummy
        self.program = program
        self._footprint = program.footprint
        self._transport = transport
        self._pad_token = pad_token
        self._run = program.run()
        self._answer: Any = None
        self._epoch = epoch
        self._encoded: tuple[RoundState, PreEncoded[RoundState]] | None = None
        self._broken = False
        self.moved_in = moved_in
        self.moved_out = moved_out

    def __next__(self) -> Step:
        while True:
            event = self._run.send(self._answer)
            self._answer = None
            if isinstance(event, Deliver):
                return self._step(event)
            self._answer = self._answered(event)

    def finish(self) -> None:
        """Run the program to its end without delivering steps, so that the other ranks learn that this loop left.

        Does nothing where this rank is alone, or where the transport has failed and no rank can be reached.
        """
        if self._transport.processes == 1 or self._broken:
            return
        try:
            for _ in self:
                pass
        except (OdbStreamError, Left) as error:
            logger.debug("rank %d: after its loop had left: %s", self._transport.rank, error)

    def _answered(self, event: Gather | Exchange | Decode) -> Any:
        if isinstance(event, Decode):
            return self._decoder.decode(event.groups, event.upcoming, first=event.first)
        # Set while the transport works, and left set by whatever it raises: `finish` must not use it again then.
        self._broken = True
        answer = self._gathered(event) if isinstance(event, Gather) else self._exchanged(event)
        self._broken = False
        return answer

    def _gathered(self, gather: Gather) -> Integers:
        with self._waits.on("peers"):
            return self._transport.gather(gather.values, choose=gather.choose)

    def _exchanged(self, exchange: Exchange) -> dict[int, list[Group[PreparedSample]]]:
        outgoing = {rank: encode_groups(groups) for rank, groups in exchange.outgoing.items()}
        with self._waits.on("peers"):
            data = self._transport.exchange(outgoing, exchange.incoming)
        received = {rank: decode_groups(groups, self._footprint) for rank, groups in data.items()}
        if not exchange.copies:
            self.moved_out += _samples_in(exchange.outgoing)
            self.moved_in += _samples_in(received)
        return received

    def _step(self, deliver: Deliver) -> Step:
        group, totals = deliver.group, deliver.totals
        counts = group.counts if group is not None else Counts()
        samples = self._samples(deliver)
        padded_tokens = counts.padded_tokens
        if self._dummy is not None and self._dummy.applies(samples, any_rank_has_images=totals.images > 0):
            samples = self._dummy.image.given_to(samples)
            if group is not None:
                padded_tokens = self._footprint.tokens([sample.length for sample in samples])
        info = StepInfo(
            epoch=self._epoch,
            step=totals.step,
            refs=tuple(sample.ref for sample in group.samples) if group is not None else (),
            samples=counts.samples,
            tokens=counts.tokens,
            padded_tokens=padded_tokens,
            supervised_tokens=counts.supervised,
            global_samples=totals.samples,
            global_tokens=totals.tokens,
            global_supervised_tokens=totals.supervised,
            samples_seen=totals.samples_seen,
            loss_scale=loss_scale(counts.supervised, totals.supervised, self._transport.size),
            idle=group is None,
            has_images=counts.images > 0,
            any_rank_has_images=totals.images > 0,
        )
        if deliver.ends_epoch:
            self._epoch += 1
        return Step(samples, info, totals, self._round_place(deliver.state), deliver.ends_epoch)

    def _round_place(self, place: Place) -> RoundPlace:
        # The round is the large part and the same for all its steps: encoded once, here in the background thread, so
        # that ``Loader.state_dict()`` costs the training loop a fraction of a millisecond.
        if self._encoded is None or self._encoded[0] is not place.round:
            self._encoded = place.round, PreEncoded(RoundState, encode(place.round, RoundState))
        return RoundPlace(
            round=self._encoded[1], step=place.step, moved_in=self.moved_in, moved_out=self.moved_out
        )

    def _samples(self, deliver: Deliver) -> tuple[PreparedSample, ...]:
        """The samples of this rank's batch, in an idle step a filler.

        A filler with images is not used in a step where no rank emits images: the other ranks would not enter the
        vision encoder then, and a sharded one waits for all of them.
        """
        if deliver.group is not None:
            return deliver.group.samples
        lent = deliver.filler.samples[0] if deliver.filler is not None else None
        if lent is not None and (deliver.totals.images or not lent.images):
            sample = self._decoder.decode_one(lent)
            if sample is not None:
                return (sample,)
        return (synthetic_sample(self._pad_token),)


def _samples_in(groups: Mapping[int, list[Group[PreparedSample]]]) -> int:
    return sum(len(group.samples) for of_rank in groups.values() for group in of_rank)


def synthetic_sample(pad_token: int) -> PreparedSample:
    """What an idle batch consists of if no rank ever had a sample to lend: one supervised token without meaning."""
    ids = np.full(2, pad_token, dtype=np.int32)
    labels = np.array([IGNORED_LABEL, pad_token], dtype=np.int32)
    return PreparedSample(SampleRef(-1, -1, -1, -1), ids, labels, 1)
