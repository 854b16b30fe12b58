"""Loss-scale guard: step infos that notice whether anybody reads their loss scale."""

from dataclasses import dataclass, fields
from typing import Any

from odb_stream.sample import StepInfo


@dataclass
class LossScaleFlag:
    """Whether ``loss_scale`` was read, shared by the step infos of an epoch."""

    was_read: bool = False

    def note(self) -> None:
        """The loss scale is being read."""
        self.was_read = True


class GuardedStepInfo(StepInfo):
    """A step info that raises its ``flag``, if it has one, when ``loss_scale`` is read."""

    __slots__ = ("_flag",)

    # The property hides the slot in which StepInfo keeps the value, so both directions go to that slot.
    @property
    def loss_scale(self) -> float:
        """As in :class:`StepInfo`."""
        # `dataclasses.replace` makes an instance without a flag, because a flag is not a field.
        if (flag := getattr(self, "_flag", None)) is not None:
            flag.note()
        return float(_slot("loss_scale").__get__(self))

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        # Only StepInfo's __init__ gets here: assignments to a frozen dataclass are refused before.
        _slot("loss_scale").__set__(self, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a plain step info: nobody reads the flag in another process."""
        return _plain, (_values(self),)


def guarded(info: StepInfo, flag: LossScaleFlag) -> StepInfo:
    """The same step info, which raises ``flag`` when its loss scale is read."""
    copied = GuardedStepInfo(**_values(info))
    object.__setattr__(copied, "_flag", flag)
    return copied


def changed(info: StepInfo, **changes: Any) -> StepInfo:
    """A plain step info with some other values. Unlike ``dataclasses.replace`` it does not count as reading one."""
    return StepInfo(**_values(info) | changes)


def _values(info: StepInfo) -> dict[str, Any]:
    return {field.name: _slot(field.name).__get__(info) for field in fields(info)}


def _slot(name: str) -> Any:
    """The descriptor through which StepInfo itself stores a field, whatever a subclass puts before it."""
    return getattr(StepInfo, name)


def _plain(values: dict[str, Any]) -> StepInfo:
    return StepInfo(**values)
