"""EpochIterator: what ``iter(loader)`` gives, one ``for`` loop over a pipeline."""

import logging
import weakref
from collections.abc import Iterator

from odb_stream.checkpoint.state import RunState
from odb_stream.config import World
from odb_stream.errors import StageError, StateError
from odb_stream.loader.history import StateHistory
from odb_stream.loader.rank_pipeline import RankPipeline
from odb_stream.loader.statistics import RunStatistics
from odb_stream.nodes.collate import STEP_KEY, Batch
from odb_stream.nodes.loss_scale_guard import LossScaleFlag, guarded

logger = logging.getLogger(__name__)


class EpochIterator(Iterator[Batch]):
    """The batches of one epoch, which begins at ``begin``. Every step enters the statistics and the history.

    ``owner`` is the loader, which is kept alive and connected as long as somebody iterates.
    """

    def __init__(
        self,
        pipeline: RankPipeline,
        begin: RunState,
        *,
        world: World,
        statistics: RunStatistics,
        history: StateHistory,
        owner: object,
    ) -> None:
        self._owner = owner
        self.pipeline = pipeline
        self._world = world
        self._statistics = statistics
        self._history = history
        self._number = begin.epoch
        self._emitted_by_all = begin.samples_seen
        self._scale_flag = LossScaleFlag()
        self._ended = False
        self._superseded = False
        # A loop that ends with `break` drops its iterator, which then closes the pipeline. By a finalizer, not __del__:
        # at interpreter exit a finalizer still runs before the modules that it needs are torn down.
        self._finalizer = weakref.finalize(self, pipeline.close)

    def __next__(self) -> Batch:
        if self._superseded:
            raise StateError(
                f"this iterator of epoch {self._number} was ended by close() or by a new iterator of the same Loader"
            )
        if self._ended:
            raise StopIteration
        try:
            batch, step = self.pipeline.take()
        except StopIteration:
            self._finish()
            raise
        self._emitted_by_all += step.totals.samples
        self._statistics.count_step(step)
        if step.ends_epoch:
            self._end()
        state = self.pipeline.state_after(step, epoch=self._number + step.ends_epoch)
        self._history.add(state, step=step.info.step)
        # On a single rank the scale is 1 unless steps accumulate: a loop may ignore it, and gets no warning.
        batch[STEP_KEY] = step.info if self._world.size == 1 else guarded(step.info, self._scale_flag)
        return batch

    def close(self) -> None:
        """End this epoch now; samples that were not emitted count as abandoned."""
        if not self._ended and not self._superseded:
            self._superseded = True
            self._finalizer()

    def _end(self) -> None:
        self._ended = True
        self._finalizer.detach()

    def _finish(self) -> None:
        """The data ended."""
        self._end()
        self.pipeline.settle(ended=True)
        following = self._number + 1
        mine, everyone = self._statistics.mine, self._statistics.everyone
        self._history.add(RunState(epoch=following, pass_number=following, mine=mine, everyone=everyone))
        self._warn_of_scale()
        dropped = self.pipeline.dropped_by_all_ranks()
        if not self._emitted_by_all and dropped:
            raise StageError(
                f"epoch {self._number}: all {sum(dropped.values())} samples were dropped ({dropped}), nothing is left "
                "to train on; the log names the first sample of each reason"
            )

    def _warn_of_scale(self) -> None:
        """Warn once if a whole epoch on several ranks passed without a look at the loss scale."""
        if self._world.size == 1 or not self._emitted_by_all or self._scale_flag.was_read:
            return
        if self._statistics.claim_loss_scale_warning():
            logger.warning(
                "rank %d: loss_scale was not read in a whole epoch on %d ranks, so ranks with few supervised tokens "
                "weigh too much and idle steps are trained on: multiply each loss by pop_step(batch).loss_scale",
                self._world.rank,
                self._world.size,
            )
