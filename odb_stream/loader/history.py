"""StateHistory: the states after the last steps of an epoch, for trainers that save one while they fetch ahead."""

from collections import deque

from odb_stream.checkpoint.state import RunState
from odb_stream.errors import StateError


class StateHistory:
    """The last ``most`` states, by the step that they follow. Those of the start and the end of an epoch follow none.

    All states of a round share its large part, so one more costs little.
    """

    def __init__(self, most: int, start: RunState) -> None:
        self._states: deque[tuple[int | None, RunState]] = deque([(None, start)], maxlen=most)

    @property
    def newest(self) -> RunState:
        """The current state of the run."""
        return self._states[-1][1]

    def add(self, state: RunState, *, step: int | None = None) -> None:
        """Add a state, which becomes the newest."""
        self._states.append((step, state))

    def begin(self, state: RunState) -> None:
        """Forget all states: a new epoch begins with this one, and counts its steps from 0."""
        self._states.clear()
        self.add(state)

    def get(self, step: int) -> RunState:
        """The state after a step. Raises StateError for a step that was not made, or too long ago."""
        states = {after: state for after, state in self._states if after is not None}
        if step not in states:
            kept = f"those of steps {min(states)} to {max(states)} are" if states else "none yet is"
            raise StateError(f"there is no state after step {step} of this epoch; {kept} kept")
        return states[step]
