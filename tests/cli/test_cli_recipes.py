"""Recipes: by path and by name, and every way in which one can be wrong."""

import sys

import pytest
from cli_support import NUMBERS_RECIPE

from odb_stream.cli.recipes import build_pipeline
from odb_stream.errors import ConfigError
from odb_stream.sources.pipeline import Pipeline

EMPTY = "from odb_stream import FromDataset, Pipeline\n"
BUILD = "    return Pipeline(FromDataset([{'input_ids': [1, 2]}]), *stages)\n"


def refused(recipe, shards=None):
    with pytest.raises(ConfigError) as caught:
        build_pipeline(str(recipe), shards)
    message = str(caught.value)
    assert str(recipe) in message
    return message


def test_a_file_is_imported_under_its_own_name(recipe):
    path = recipe(NUMBERS_RECIPE)
    pipeline = build_pipeline(str(path))
    assert isinstance(pipeline, Pipeline)
    assert pipeline.stages[0].__module__ == path.stem
    assert sys.modules[path.stem].build().stages == pipeline.stages
    assert build_pipeline(str(path)).stages == pipeline.stages


def test_a_relative_path_a_name_and_a_module_beside_the_recipe_work(recipe, monkeypatch, tmp_path):
    recipe("WORDS = ['beside']\n", name="beside_the_recipe")
    path = recipe(f"from beside_the_recipe import WORDS\n{EMPTY}stages = ()\ndef build():\n{BUILD}")
    monkeypatch.chdir(tmp_path)
    assert isinstance(build_pipeline(path.name), Pipeline)
    numbers = recipe(NUMBERS_RECIPE)
    assert build_pipeline(numbers.stem).stages[0].__module__ == numbers.stem


def test_the_shards_reach_build(recipe):
    keep = "    seen.append(shards)\n    stages = ()\n"
    path = recipe(f"seen = []\n{EMPTY}def build(shards='own', **more):\n{keep}{BUILD}")
    build_pipeline(str(path))
    build_pipeline(str(path), "a-{0..3}.tar")
    assert sys.modules[path.stem].seen == ["own", "a-{0..3}.tar"]


def test_a_missing_recipe_is_named(tmp_path):
    text = tmp_path / "recipe.txt"
    text.write_text("")
    assert "does not exist" in refused(tmp_path / "gone.py")
    assert "is a folder" in refused(tmp_path)
    assert "is not a .py file" in refused(text)
    assert "such as ./no_such_recipe_anywhere.py" in refused("no_such_recipe_anywhere")
    assert "no module of this name" in refused("no_such_package.recipe")
    assert "neither a path nor" in refused("two words")
    assert "neither a path nor" in refused("")


SOURCES = {
    "no build": ("x = 1\n", "has no function build"),
    "build is not a function": ("build = 3\n", "has no function build"),
    "raises": ("def f():\n    return 1 / 0\nf()\n", "line 2"),
    "missing library": ("import no_such_library\n", "No module named 'no_such_library'"),
    "syntax": ("def build(:\n", "SyntaxError"),
    "exits": ("raise SystemExit(0)\n", "SystemExit"),
    "build raises": ("def build():\n    return {}['tokenizer']\n", "build() raised KeyError: 'tokenizer'"),
    "returns something else": ("def build():\n    return [1]\n", "build() returned [1], not an odb_stream.Pipeline"),
    "needs arguments": ("def build(tokenizer):\n    pass\n", "missing a required argument: 'tokenizer'"),
}


@pytest.mark.parametrize(("source", "message"), SOURCES.values(), ids=SOURCES)
def test_a_recipe_that_cannot_work_says_why(recipe, source, message):
    assert message in refused(recipe(source))


def test_shards_for_a_recipe_without_that_parameter_are_refused(recipe):
    path = recipe(f"{EMPTY}stages = ()\ndef build(tokenizer='t'):\n{BUILD}")
    assert "build(tokenizer='t') takes no parameter `shards`" in refused(path, "a.tar")
    build_pipeline(str(path))


def test_an_error_of_the_package_keeps_its_own_words(recipe):
    path = recipe("import odb_stream\ndef build():\n    return odb_stream.Pipeline(odb_stream.Shards([]))\n")
    with pytest.raises(ConfigError, match=r"^the list of shards is empty"):
        build_pipeline(str(path))


def test_a_name_that_another_module_has_is_refused(recipe):
    assert "rename the file" in refused(recipe(NUMBERS_RECIPE, name="json"))
    assert "rename" in refused(recipe(NUMBERS_RECIPE, name="my.recipe"))
