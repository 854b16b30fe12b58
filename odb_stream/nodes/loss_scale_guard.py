"""Watched: a step info that notices whether its loss scale is ever looked at."""

import contextlib
from dataclasses import fields
from typing import Any

from odb_stream.sample import StepInfo


class Watch:
    """What was looked at in the steps of an epoch."""

    def __init__(self) -> None:
        self.loss_scale_read = False


class WatchedStepInfo(StepInfo):
    """A step info that tells its ``watch``, if it has one, when ``loss_scale`` is read."""

    __slots__ = ("_watch",)

    def __getattribute__(self, name: str) -> Any:
        if name == "loss_scale":
            with contextlib.suppress(AttributeError):  # `dataclasses.replace` makes one without a watch
                object.__getattribute__(self, "_watch").loss_scale_read = True
        return object.__getattribute__(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle, and copy, as a plain step info."""
        return _plain, (_values(self),)


def watched(info: StepInfo, watch: Watch) -> StepInfo:
    """The same step info, watched."""
    seen = WatchedStepInfo(**_values(info))
    object.__setattr__(seen, "_watch", watch)
    return seen


def changed(info: StepInfo, **changes: Any) -> StepInfo:
    """A plain step info with some other values; unlike ``dataclasses.replace`` it counts as no look at the others."""
    return StepInfo(**_values(info) | changes)


def _values(info: StepInfo) -> dict[str, Any]:
    return {field.name: object.__getattribute__(info, field.name) for field in fields(info)}


def _plain(values: dict[str, Any]) -> StepInfo:
    return StepInfo(**values)
