"""Short samples: one word to a few sentences, in several languages and scripts."""

from demo_text.chat import Chat, ask, assistant, chat, system, user
from demo_text.draw import Draw
from demo_text.words import CITIES, DICTIONARY, GOODS, LANGUAGES, OPPOSITES, PEOPLE, WEATHER

GREETINGS = (
    ("Hi", "Hello! What can I do for you?"),
    ("Good morning", "Good morning. How can I help?"),
    ("Guten Abend", "Guten Abend! Womit kann ich helfen?"),
    ("Bonjour", "Bonjour ! Que puis-je faire pour vous ?"),
    ("Hola", "¡Hola! ¿En qué puedo ayudarte?"),
    ("你好", "你好！有什么可以帮你的吗？"),
    ("こんにちは", "こんにちは。ご用件は何でしょうか。"),
    ("Здравствуйте", "Здравствуйте! Чем могу помочь?"),
    ("Καλημέρα", "Καλημέρα! Πώς μπορώ να βοηθήσω;"),
    ("مرحبا", "مرحبا! كيف يمكنني أن أساعدك؟"),
    ("नमस्ते", "नमस्ते! मैं आपकी क्या मदद कर सकता हूँ?"),
    ("Thanks!", "You are welcome."),
    ("ok", "👍"),
)

NOTES = ("Yes", "No", "Done", "Later", "Agreed", "Not yet", "See you at noon", "All clear", "Two more, please")


def greeting(draw: Draw) -> Chat:
    """A greeting and its answer."""
    return ask(*draw.pick(GREETINGS))


def note(draw: Draw) -> Chat:
    """An assistant turn of a word or two, with nothing before it: the shortest samples."""
    return chat(assistant(draw.pick(NOTES)))


def word(draw: Draw) -> Chat:
    """A word in another language, asked in one of a few ways."""
    row = draw.pick(DICTIONARY)
    source, target = draw.several(range(len(LANGUAGES)), 2)
    given, wanted = row[source], row[target]
    name = LANGUAGES[target]
    question, answer = draw.pick(
        (
            (f"What is the {name} word for “{given}”?", f"“{wanted}”."),
            (f"{given} → {name}", wanted),
            (f"How do you say {given} in {name}?", f"In {name} it is {wanted}."),
            (f"Translate into {name}, one word only: {given}", wanted),
        )
    )
    return ask(question, answer)


def glossary(draw: Draw) -> Chat:
    """A few words in a few languages, as a list."""
    rows = draw.several(DICTIONARY, draw.between(2, 8))
    columns = draw.several(range(1, len(LANGUAGES)), draw.between(2, 5))
    words = ", ".join(row[0] for row in rows)
    names = ", ".join(LANGUAGES[column] for column in columns)
    lines = [f"- {row[0]}: " + ", ".join(row[column] for column in columns) for row in rows]
    return ask(f"Give me these words in {names}: {words}.", "\n".join(lines))


def opposite(draw: Draw) -> Chat:
    """The opposite of an adjective, sometimes with a sentence."""
    one, other = draw.pick(OPPOSITES)
    if draw.chance(0.5):
        one, other = other, one
    answer = f"The opposite of “{one}” is “{other}”."
    if draw.chance(0.5):
        answer += f" For example: the first answer seemed {one}, the second one {other}."
    return ask(f"What is the opposite of {one}?", answer)


def letters(draw: Draw) -> Chat:
    """Spelling: length, reversal and vowels of a word."""
    text = draw.pick(GOODS + CITIES).lower()
    kind = draw.below(3)
    if kind == 0:
        return ask(f"How many letters has the word {text!r}?", f"{len(text)}: {'-'.join(text)}.")
    if kind == 1:
        return ask(f"Spell {text} backwards.", text[::-1])
    vowels = [letter for letter in text if letter in "aeiou"]
    return ask(f"Which vowels are in {text}?", f"In order: {', '.join(vowels)}. That makes {len(vowels)}.")


def sums(draw: Draw) -> Chat:
    """One calculation, asked in one of several languages."""
    a, b = draw.between(3, 98), draw.between(3, 98)
    return ask(
        *draw.pick(
            (
                (f"{a} + {b}?", f"{a + b}"),
                (f"What is {a} times {b}?", f"{a} × {b} = {a * b}."),
                (f"Wie viel ist {a} mal {b}?", f"{a} mal {b} ist {a * b}."),
                (f"¿Cuánto es {a} más {b}?", f"Son {a + b}."),
                (f"{a} 加 {b} 等于多少？", f"{a} 加 {b} 等于 {a + b}。"),
                (f"{a}と{b}を足すといくつですか。", f"{a + b}です。"),
                (f"Сколько будет {a} плюс {b}?", f"{a} плюс {b} будет {a + b}."),
            )
        )
    )


def persona(draw: Draw) -> Chat:
    """A system prompt that sets a manner, and one exchange in it."""
    name, town = draw.pick(PEOPLE), draw.pick(CITIES)
    weather = draw.pick(WEATHER)
    manner, answer = draw.pick(
        (
            ("Answer in one word.", "Yes."),
            ("Answer like a ship's log.", f"{draw.between(1, 23):02d}:00. {weather} Course held for {town}. All well."),
            ("Answer as a patient teacher.", f"Good question, {name}. Look outside, then read the forecast."),
            ("Answer in a rhyme.", f"In {town} the clouds are grey, so take your coat along today."),
            ("Always ask one question back.", f"I would take one to be safe. How long will you stay in {town}?"),
        )
    )
    return chat(system(manner), user(f"I am {name}. Do I need an umbrella in {town}?"), assistant(answer))


def special_spelling(draw: Draw) -> Chat:
    """A question about the marks of the chat format itself: spelled in the text, they must stay text."""
    mark, use = draw.pick(
        (
            ("<|im_end|>", "closes a turn"),
            ("<|im_start|>", "opens a turn and is followed by the role"),
            ("<|endoftext|>", "separates documents and serves as padding"),
        )
    )
    answer = f"The mark {mark} {use}. In ordinary text it is just characters."
    return ask(f"In a ChatML file, what does {mark} mean?", answer)


def parts(draw: Draw) -> Chat:
    """Contents given as lists of text parts instead of strings."""
    thing, place = draw.pick(GOODS), draw.pick(CITIES)
    count = draw.between(2, 90)
    question = [
        {"type": "text", "text": f"A market stall in {place} sells {thing}. "},
        {"type": "text", "text": f"{count} are left at noon and half of them go in the afternoon. How many remain?"},
    ]
    return {
        "messages": [
            {"role": "user", "content": question},
            {"role": "assistant", "content": [{"type": "text", "text": f"{count - count // 2} {thing} remain."}]},
        ]
    }
