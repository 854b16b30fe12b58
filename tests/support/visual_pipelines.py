"""Pipelines with ExpandVisualTokens, and a chat with four images."""

from stage_samples import sample, through
from vision_support import backend, image_file, members, processor, turn

from odb_stream.prepare.records import Prepare, SourceStages
from odb_stream.sample import PreparedSample, Record, SampleRef
from odb_stream.stages import ChatTemplate, ExpandVisualTokens, MeasureImages, PlannedImage, Tokenize

START, END, PAD = (backend().token_to_id(token) for token in ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"))

MARK = "<|vision_start|><|image_pad|><|vision_end|>"

# Turns whose images are one token each.
FIXED = """
{%- for m in messages -%}
    {{- '<|im_start|>' + m.role + '\\n' -}}
    {%- if m.content is string -%}{{- m.content -}}{%- else -%}
        {%- for part in m.content -%}{{- mark if part.type == 'image' else part.text -}}{%- endfor -%}
    {%- endif -%}{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

CHAT = [
    turn("user", None, "hm, ", None, "what?"),
    turn("assistant", "a cat and a dog"),
    turn("user", "and", None, None),
    turn("assistant", "a picture"),
]

FILES = [image_file(60, 40), image_file(90, 90), image_file(30, 120), image_file(60, 60)]


def pipeline(family: str = "qwen2_vl", **settings: object) -> list:
    made = processor(family)
    return [MeasureImages(), ChatTemplate(made), Tokenize(made, **settings), ExpandVisualTokens(made)]


def expanded(*files: bytes, chat=None, family: str = "qwen2_vl", **settings: object):
    chat = chat or [turn("user", *[None] * len(files), "what?"), turn("assistant", "a cat")]
    return through(pipeline(family, **settings), sample(messages=chat, **members(*files)))


def image(size: tuple[int, int] = (60, 40), name: str = "0.png") -> PlannedImage:
    return PlannedImage(name, image_file(*size), size)


def ready(stages, **members_) -> PreparedSample:
    fields = {"messages": CHAT, **members(*FILES), **members_}
    out = Prepare((SourceStages(lambda record: fields, tuple(stages)),), seed=17).record(
        Record(SampleRef(0, 0, 0, -1), "k", "s", epoch=3)
    )
    assert isinstance(out, PreparedSample)
    return out
