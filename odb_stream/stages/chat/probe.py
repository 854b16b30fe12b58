"""Learns how a template opens and ends an assistant's turn, once at construction, from a chat of known contents."""

import re
from collections.abc import Callable
from typing import NamedTuple

from odb_stream.errors import ConfigError
from odb_stream.stages.chat.messages import Message
from odb_stream.stages.chat.rendering import Renderer, RenderError
from odb_stream.stages.chat.skeleton import Skeleton, SkeletonMaker, common_start, places, split
from odb_stream.stages.chat.turns import MARK_IT, TurnRules, last_token_end, rendered_layout

# Plain chats first. A template may demand a system message, or refuse a second question: hence the others.
_CHATS = (
    ("user", "assistant", "user", "assistant"),
    ("system", "user", "assistant", "user", "assistant"),
    ("user", "assistant"),
    ("system", "user", "assistant"),
)
_CALL = {"id": "callprobe", "type": "function", "function": {"name": "probe", "arguments": {"number": 1}}}


def learn(renderer: Renderer, maker: SkeletonMaker, tokens: re.Pattern[str] | None) -> TurnRules | None:
    """The rules of a template; None for a template with generation marks, once it is sure that they enclose answers.

    ``tokens`` finds the added tokens of the vocabulary. Raises a ConfigError that names the template's owner, the
    reason and the way out.
    """
    skeleton = _probe(renderer, maker)
    if renderer.has_marks:
        _check_marks(renderer, skeleton)
        return None
    literals, order = split(renderer.render(skeleton.messages).text)
    refuse = _refusal(renderer)
    answers = [turn for turn, message in enumerate(skeleton.messages) if message["role"] == "assistant"]
    # The terminator is what follows every answer, up to its last token (or all of it, without tokens).
    after = [literals[order.index(turn) + 1] for turn in answers]
    common = common_start(after)
    terminator = common[: last_token_end(common, tokens)] or common.rstrip() or common
    if not terminator:
        raise refuse("writes nothing of its own after every answer, so a model trained on it would never learn to stop")
    opening = _opening(renderer, skeleton, answers, tokens)
    prompt = opening.prompt.removesuffix(opening.overhang)
    token, tool_tail = _calling(renderer, maker, tokens)
    rules = TurnRules(
        terminator=terminator,
        call_terminator=token or terminator,
        certain=last_token_end(terminator, tokens) > 0,
        introduction=opening.introduction,
        overhang=opening.overhang,
        epilogue=opening.epilogue,
        prompt=prompt if last_token_end(prompt, tokens) else "",
        tails={"user": opening.tail} | ({"tool": tool_tail} if tool_tail else {}),
    )
    problem = rendered_layout(renderer, skeleton, rules).problem
    if problem:
        raise refuse(f"gives a probe chat whose spans are not sound: {problem}")
    return rules


def _probe(renderer: Renderer, maker: SkeletonMaker) -> Skeleton:
    """The first probe chat that the template accepts and renders in full; placeholder n is the content of turn n."""
    reason = ""
    for roles in _CHATS:
        messages = [{"role": role, "content": f"What turn {turn} says"} for turn, role in enumerate(roles)]
        skeleton = maker.make(messages, None)
        try:
            text = renderer.render(messages).text
            literals, order = split(renderer.render(skeleton.messages, same_time=True).text)
        except RenderError as error:
            reason = reason or f"raises on a plain chat ({error})"
            continue
        absent = [f"{turn} ({role})" for turn, role in enumerate(roles) if turn not in order]
        if absent:
            odd = f"does not render the content of turn {absent[0]}"
        elif len(order) > len(roles) or order[-1] != len(roles) - 1:  # a system message may come later than its turn
            odd = "renders contents twice or out of order"
        elif places(text, literals, order, skeleton.values) is None:
            odd = "changes the contents as it renders them"
        else:
            return skeleton
        reason = reason or f"{odd}, in a plain chat with the turns {', '.join(roles)}"
    raise _refusal(renderer)(reason)


class _Opening(NamedTuple):
    """How a template opens an answer: see the attributes of TurnRules (``tail`` follows a user's message)."""

    introduction: str = ""
    overhang: str = ""
    epilogue: str = ""
    prompt: str = ""
    tail: str = ""


def _opening(renderer: Renderer, skeleton: Skeleton, answers: list[int], tokens: re.Pattern[str] | None) -> _Opening:
    """Compare the text before each answer of the probe with the generation prompt in the same place."""
    literals, order = split(renderer.render(skeleton.messages).text)
    opening = _Opening()
    for turn in answers:
        before = skeleton.messages[:turn]
        try:
            prompted, bare = renderer.render(before, prompt=True).text, renderer.render(before).text
        except RenderError as error:
            raise _refusal(renderer)(f"raises on a chat that ends with the user ({error})") from error
        header, tail = literals[order.index(turn)], split(prompted)[0][-1]
        opening = opening._replace(tail=tail, prompt=prompted[len(common_start([prompted, bare])) :])
        if prompted == bare:  # no generation prompt: the header of the answer is compared with the end of a chat
            shared = common_start([header, tail])
            shared = shared if shared == tail else shared[: last_token_end(shared, tokens)]
            extra = header.removeprefix(shared)
            if extra.strip():
                opening = opening._replace(introduction=extra)
            if shared != tail:
                opening = opening._replace(epilogue=tail.removeprefix(shared))
        elif tail.startswith(header):
            opening = opening._replace(overhang=max(opening.overhang, tail.removeprefix(header), key=len))
        elif not header.startswith(tail):
            raise _refusal(renderer)(
                f"opens an answer with {header!r:.80} but its generation prompt is {tail!r:.80}; neither begins with "
                "the other, so it is unknown where the model's own words begin"
            )
    return opening


def _calling(renderer: Renderer, maker: SkeletonMaker, tokens: re.Pattern[str] | None) -> tuple[str, str]:
    """The token that ends a turn of tool calls, and what follows a tool's result up to the end of the prompt.

    Both are empty if the template takes no calls, or ends them without a token of the vocabulary.
    """
    chat: list[Message] = [
        {"role": "user", "content": "probe"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "name": "probe", "tool_call_id": "callprobe", "content": "probe"},
    ]
    skeleton = maker.make(chat, None).messages
    try:
        ended = renderer.render(skeleton[:2]).text
        followed = renderer.render(skeleton).text
        tail = split(renderer.render(skeleton, prompt=True).text)[0][-1]
    except RenderError:
        return "", ""
    # "number" is the argument of the probe's call, wherever and however the template writes it.
    ends = [text[text.find("number") :] for text in (ended, followed) if "number" in text]
    if tokens is None or len(ends) < 2:
        return "", ""
    found = [match[0] for match in tokens.finditer(common_start(ends))]
    return (found[-1], tail) if found else ("", "")


def _check_marks(renderer: Renderer, skeleton: Skeleton) -> None:
    """Raise unless the generation marks enclose an answer of the probe and no other role's words."""
    text, spans = renderer.render(skeleton.messages)
    enclosed = {number for start, end in spans for number in split(text[start:end])[1]}
    roles = {skeleton.messages[number]["role"] for number in enclosed}
    if roles != {"assistant"}:
        what = f"the {' and '.join(sorted(roles - {'assistant'}))} turns" if roles else "no content of any turn"
        raise ConfigError(
            f"the generation marks of the chat template of {renderer.name} enclose {what} of a plain chat: they must "
            "enclose what the assistant says and nothing else; correct them, or give another template with "
            "ChatTemplate(processor, template=TEXT)"
        )


def _refusal(renderer: Renderer) -> Callable[[str], ConfigError]:
    def error(reason: str) -> ConfigError:
        return ConfigError(
            f"no sound supervised spans can be found: the chat template of {renderer.name} {reason}. To fix it, "
            f"{MARK_IT}"
        )

    return error
