"""Tells who is alive: a thread that counts in the group's store, reads the others' counts and listens for ends."""

import threading
import time
from collections.abc import Callable, Collection, Sequence

from odb_stream.ranks.liveness import HUB, Lifelines
from odb_stream.ranks.peer_events import News
from odb_stream.ranks.rendezvous import Rendezvous, StoreClient

MOST_SECONDS = 2.0
RANKS_A_BEAT = 64
NEWS_KEY = "news"


class RunningClock:
    """Seconds that this process ran, as seen by the threads that read the clock.

    A process that was stopped (a signal, a suspended job or machine) must not take its own pause for the silence of
    others: between two readings at most ``MOST_SECONDS`` pass.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0
        self._read = time.monotonic()

    def now(self) -> float:
        """Seconds since the start."""
        with self._lock:
            read = time.monotonic()
            self._seconds += min(read - self._read, MOST_SECONDS)
            self._read = read
            return self._seconds


class Ages:
    """For each rank, how long ago its count last changed. Pure: times are the caller's."""

    def __init__(self, size: int, now: float) -> None:
        self._counts = [b""] * size
        self._changed = [now] * size

    def record(self, counts: Sequence[bytes], now: float) -> None:
        """Take the counts of all ranks, asked for at ``now``."""
        for rank, count in enumerate(counts):
            if count != self._counts[rank]:
                self._counts[rank], self._changed[rank] = count, now

    def older_than(self, seconds: float, now: float) -> dict[int, float]:
        """The ranks whose count has not changed for longer than ``seconds``, with their ages."""
        ages = {rank: now - changed for rank, changed in enumerate(self._changed)}
        return {rank: age for rank, age in ages.items() if age > seconds}


class Heartbeat:
    """One rank's heartbeat: a key of the store that each rank counts up in, or in which its end stands.

    ``news`` is the first event that ended the work in common, the same on all ranks; after that there is nothing to
    beat for. ``gone`` holds the news about each rank that takes no part any more. ``lost`` is the error with which the
    store was lost, at ``lost_at`` by ``clock``. ``waiting`` is set by the thread that waits for other ranks: silence
    only matters while one waits. It also sets ``cause``, the news for which this rank gave up.
    """

    def __init__(
        self,
        store: StoreClient,
        lines: Lifelines,
        rendezvous: Rendezvous,
        *,
        rank: int,
        size: int,
        interval: float,
        timeout: float,
    ) -> None:
        self._store, self._lines, self._rendezvous = store, lines, rendezvous
        self._rank = rank
        self._interval, self._timeout = interval, timeout
        self._beats = [f"beat/{other}" for other in range(size)]
        # With many ranks the store has better things to do than to tell everybody of everybody each second.
        self._read_every = max(1, min(size // RANKS_A_BEAT, int(timeout / (4 * interval))))
        self.clock = RunningClock()
        self._ages = Ages(size, self.clock.now())
        self._count = 0
        self._complete = False
        self._answered = self.clock.now()
        self.waiting = False
        self.cause: News | None = None
        self.news: News | None = None
        self.gone: dict[int, News] = {}
        self.lost: RuntimeError | None = None
        self.lost_at = 0.0
        self._known = threading.Condition()
        self._inbox: list[News] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="odb_stream-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        if self._rank == HUB:
            self._store.set(NEWS_KEY, "")
        self._store.set(self._beats[self._rank], "0")
        self._thread.start()

    def publish(self, news: News) -> None:
        """Let all ranks know; returns at once, from any thread."""
        with self._known:
            self._inbox.append(news)
        self._lines.wake()

    def leave(self) -> None:
        """Let all ranks know that this one leaves; returns at once, from any thread."""
        news = News("left", (self._rank,))
        # Here already: the process may end before the thread comes to it. The cause first, so that others, too, name
        # the rank that began.
        for one in [news] if self.cause is None else [self.cause, news]:
            self._lines.say(one)
        self.publish(news)

    def wait_for_news(self, seconds: float) -> News | None:
        """The first news, waiting for it up to ``seconds``."""
        with self._known:
            self._known.wait_for(lambda: self.news is not None, seconds)
            return self.news

    def about(self, needed: Collection[int]) -> News | None:
        """The news that ends a call for which these ranks are needed: the first, where that is every rank."""
        if len(needed) == len(self._beats):
            return self.news
        return next((news for rank, news in list(self.gone.items()) if rank in needed), None)

    def silence(self) -> float:
        """Seconds since the store last answered."""
        return self.clock.now() - self._answered

    def still(self, seconds: float) -> tuple[int, ...]:
        """The ranks without a sign of life for longer than that, as of the last answer of the store."""
        return tuple(self._ages.older_than(seconds, self._answered))

    def stop(self, seconds: float) -> None:
        """End the thread and the lines; wait for that for a while."""
        self._stopping = True
        self._lines.wake()
        self._thread.join(seconds)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping:
            for news in self._lines.listen(due - time.monotonic() if self._beats_on() else self._interval):
                self._take(news, heard=True)
            self.clock.now()
            self._take_inbox()
            if self._beats_on() and time.monotonic() >= due:  # asked anew: what was heard may be the store's end
                self._guarded(self._beat)
                due = time.monotonic() + self._interval
        self._take_inbox()
        self._lines.close()

    def _beats_on(self) -> bool:
        return self.lost is None and self._rank not in self.gone and (self.news is None or self.waiting)

    def _take_inbox(self) -> None:
        with self._known:
            told, self._inbox = self._inbox, []
        for news in told:
            self._take(news, heard=False)

    def _take(self, news: News, *, heard: bool) -> None:
        """Act on news that did not come from the store; ``heard`` over a line."""
        fresh = [rank for rank in news.ranks if rank not in self.gone]
        if not fresh:
            return
        if self.news is None and (self._rank == HUB or not heard):
            self._lines.say(news)  # at once, for the store may go down with its host
        self._learn(news)  # before the look at ``waiting``, which is set before the look at what is known
        self._rendezvous.know(self.gone)
        if self.waiting or not self._all_know(heard):
            self._guarded(lambda: self._tell(news, fresh))
        if self.news is None:
            self._learn_first(news)

    def _all_know(self, heard: bool) -> bool:
        """Whether rank 0 has told everybody, or has left.

        Then the store's host may be gone, as after any proper end, and a call to it would print pages of warnings.
        """
        hub_left = HUB in self.gone and self.gone[HUB].kind == "left"
        return self._rank != HUB and (heard or hub_left)

    def _tell(self, news: News, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self._store.set(self._beats[rank], news.encode())
        if self.news is None:
            self._learn_first(News.decode(self._store.compare_set(NEWS_KEY, "", news.encode())))
        self._rendezvous.call_off(self._store, self.gone)

    def _learn(self, news: News) -> None:
        with self._known:
            self.gone = {**self.gone, **{rank: news for rank in news.ranks if rank not in self.gone}}
            self._known.notify_all()

    def _learn_first(self, news: News) -> None:
        with self._known:
            self.news = news
            self.gone = {**dict.fromkeys(news.ranks, news), **self.gone}  # it comes first, as on all ranks
            self._known.notify_all()

    def _guarded(self, call: Callable[[], None]) -> None:
        if self.lost is None:
            try:
                call()
            except RuntimeError as error:
                self.lost, self.lost_at = error, self.clock.now()

    def _beat(self) -> None:
        self._count += 1
        self._store.set(self._beats[self._rank], str(self._count))
        if not self._complete:
            # Reading a key that is not there yet would block.
            self._complete = self._store.check([NEWS_KEY, *self._beats])
            self._answered = self.clock.now()
            return
        asked = self.clock.now()
        wanted = self._beats if self.news is not None or self._count % self._read_every == 0 else []
        first, *values = self._store.multi_get([NEWS_KEY, *wanted])
        self._answered = self.clock.now()
        self._ages.record(values, asked)
        known = len(self.gone), self.news
        if first and self.news is None:
            self._learn_first(News.decode(first))
        for value in values:
            if not value.isdigit():
                self._learn(News.decode(value))
        if (len(self.gone), self.news) != known:
            self._rendezvous.call_off(self._store, self.gone)
        elif self.waiting:
            self._look_for_silence(asked)

    def _look_for_silence(self, now: float) -> None:
        ages = self._ages.older_than(self._timeout, now)
        silent = {rank: age for rank, age in ages.items() if rank not in self.gone}
        if silent:
            self._take(
                News("silent", tuple(silent), f"{max(silent.values()):.1f} s (timeout {self._timeout:g} s)"),
                heard=False,
            )
