"""What a rank can learn of others that ends their common work, its form in a store, and the error it becomes."""

import json
from typing import Literal, NamedTuple

from odb_stream.errors import AlignmentTimeout, PeerError


class PeerEvent(NamedTuple):
    """After it, ``ranks`` no longer take part, so the ranks can no longer agree on steps.

    ``left``: a rank stopped on its own. ``died``: its process is gone. ``silent``: it gave no sign of life for longer
    than the timeout; ``detail`` says for how long. ``broken``: it lost a connection although all ranks are alive;
    ``detail`` holds the cause.
    """

    kind: Literal["left", "died", "silent", "broken"]
    ranks: tuple[int, ...]
    detail: str = ""

    def encode(self) -> str:
        """One line of text, for :meth:`decode`."""
        return json.dumps([self.kind, self.ranks, self.detail])

    @classmethod
    def decode(cls, text: str | bytes) -> "PeerEvent":
        """The inverse of :meth:`encode`."""
        kind, ranks, detail = json.loads(text)
        return cls(kind, tuple(ranks), detail)

    def error(self, rank: int) -> PeerError:
        """The error that rank ``rank`` raises."""
        who = name_ranks(self.ranks)
        match self.kind:
            case "left":
                return PeerError(
                    f"{who} left (its loader was closed or its loop ended) while rank {rank} still had steps to agree "
                    "on with it: let all ranks stop at the same step"
                )
            case "died":
                return PeerError(
                    f"{who} died (its process is gone): its own log says why, or the kernel's log of its host, if it "
                    "was killed for memory"
                )
            case "silent":
                return AlignmentTimeout(
                    f"{who} gave no sign of life for {self.detail}: its process is stopped, or its network is cut. If "
                    "it may be silent for so long, give the Loader a larger timeout"
                )
            case "broken":
                return PeerError(
                    f"{who} lost its connection to another rank, though all ranks give signs of life: {self.detail}"
                )


def name_ranks(ranks: tuple[int, ...]) -> str:
    """``rank 3``, or ``ranks 3, 5``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
