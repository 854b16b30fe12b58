"""What the Trainer iterates over: the loader's own batches, one accumulation window at a time, and one ahead."""

from collections import deque
from collections.abc import Iterator

from odb_stream.adapters.torch import idle_copies
from odb_stream.errors import OdbStreamError
from odb_stream.loader import Loader
from odb_stream.nodes.collate import STEP_KEY, Batch
from odb_stream.sample import StepInfo


class TrainStream:
    """A loader as ``get_train_dataloader`` returns it: each ``iter`` is the loader's next epoch, of unknown length.

    It has neither a length nor a sampler, so nothing can shard it again or skip in it.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.windows: Windows | None = None
        """The windows of the running epoch."""

    def __iter__(self) -> "Windows":
        self.windows = Windows(iter(self.loader), self.loader.settings.grad_accum)
        return self.windows


class Windows(Iterator[Batch]):
    """The batches of an epoch. The last window is filled up with idle steps, because the Trainer steps at full ones."""

    def __init__(self, batches: Iterator[Batch], size: int) -> None:
        self._batches = batches
        self._size = size
        self._ahead: list[Batch] | None = None
        self._error: OdbStreamError | None = None
        self._single: deque[Batch] = deque()
        self.last: StepInfo | None = None
        """The last step of the window that was taken, not counting idle copies."""

    def take(self) -> list[Batch]:
        """The batches of the next optimizer step; empty at the end of the epoch."""
        window = self._pull() if self._ahead is None else self._ahead
        if not window and self._error is not None:  # only now: the windows before it have been trained on
            raise self._error
        self._ahead = None
        for batch in window:
            step: StepInfo = batch[STEP_KEY]
            if step.global_samples:  # else it only fills up the window
                self.last = step
        return window

    def more(self) -> bool:
        """Whether the epoch has more windows; pulls the next one to find out. Keeps an error for :meth:`take`."""
        if self._ahead is None:
            self._ahead = self._pull()
        return bool(self._ahead) or self._error is not None

    def _pull(self) -> list[Batch]:
        window: list[Batch] = []
        try:
            for batch in self._batches:
                window.append(batch)
                if batch[STEP_KEY].accum_last:
                    break
        except OdbStreamError as error:
            self._error = error
            return []
        if window:
            window += idle_copies(window[-1], len(window), self._size)
        return window

    def __next__(self) -> Batch:
        if not self._single:
            self._single.extend(self.take())
        if not self._single:
            raise StopIteration
        return self._single.popleft()


class EvalStream:
    """A loader as ``get_eval_dataloader`` returns it: each ``iter`` repeats the same epoch, in the same order."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._start = loader.state_dict()

    def __iter__(self) -> Iterator[Batch]:
        self.loader.load_state_dict(self._start)
        return iter(self.loader)
