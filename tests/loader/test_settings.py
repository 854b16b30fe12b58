"""Settings: written once and repeated by the Loader's signature, and refused by name where they cannot work."""

import re
from dataclasses import MISSING, fields
from inspect import Parameter, signature

import pytest
import torch
from loader_data import Ready, loader

import odb_stream as odb
from odb_stream.config import Settings


def test_the_signature_of_the_loader_repeats_the_settings() -> None:
    """Fails with: a setting that was added, or whose type or default changed, in one of the two places only."""
    given = dict(signature(odb.Loader).parameters)
    assert given.pop("failure_budget").default is None, "None is FailureBudget(), which no signature shows well"
    for setting in fields(Settings):
        if setting.name != "failure_budget":
            shown = given.pop(setting.name)
            default = MISSING if shown.default is Parameter.empty else shown.default
            assert (shown.annotation, default) == (setting.type, setting.default), setting.name
    assert set(given) == {"pipeline", "quarantine", "world"}


def test_the_docstring_of_the_loader_explains_every_argument() -> None:
    explained = re.findall(r"^ {8}(\w+): ", (odb.Loader.__doc__ or "").partition("Raises:")[0], re.M)
    assert explained == list(signature(odb.Loader).parameters)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 128}, "budget must be a Budget, not 128"),
        ({"failure_budget": 0.1}, "failure_budget must be a FailureBudget, not 0.1"),
        ({"window": 0}, "window is 0, .* at least 1"),
        ({"lookahead": -1}, "lookahead is -1"),
        ({"workers": -1}, "workers is -1"),
        ({"workers": 1.5}, "workers must be an integer, not 1.5"),
        ({"seed": -3}, "seed is -3"),
        ({"layout": "ragged"}, "layout is 'ragged', .* padded, packed"),
        ({"oversize": "ignore"}, "oversize is 'ignore'"),
        ({"max_bytes": 0}, "max_bytes is 0"),
        ({"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0"),
        ({"pad_to_multiple_of": 256}, r"pad_to_multiple_of is 256, .*Budget.tokens \(128\)"),
        ({"quota": 4}, "quota is 4, .*'join'"),
        ({"closure": "quota"}, "quota .*not None"),
        ({"rebalance": 1}, "rebalance must be True or False, not 1"),
        ({"timeout": 0}, "timeout is 0"),
        ({"pin_memory": True}, "pin_memory is True"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings: dict, message: str) -> None:
    if settings.get("pin_memory") and torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.raises(odb.ConfigError, match=message):
        loader(Ready(4), **settings)
