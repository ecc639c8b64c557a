"""A small closed domain of things people say to machines: few words, many sentences, all of them spelt out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_ONES = (*DIGITS, "ten", "eleven", "twelve")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

SLOTS: dict[str, tuple[str, ...]] = {
    "name": ("anna", "robert", "maria", "peter", "julia", "david", "susan", "michael"),
    "room": ("kitchen", "bedroom", "bathroom", "garden", "office", "garage"),
    "device": ("light", "radio", "heater", "camera", "television", "fan"),
    "switch": ("on", "off"),
    "unit": ("seconds", "minutes", "hours"),
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday", "tomorrow"),
    "part": ("in the morning", "in the afternoon", "in the evening"),
    "city": ("london", "paris", "boston", "chicago", "madrid", "vienna"),
    "item": ("apples", "bananas", "eggs", "potatoes", "tomatoes", "bottles of water", "loaves of bread"),
    "music": ("jazz", "classical music", "the news", "my favorite song"),
    "task": ("call the doctor", "water the plants", "buy a ticket", "feed the dog", "pay the rent"),
    "level": ("up", "down"),
}
"""What may stand in a slot; `number` and `digits` are made anew each time."""

TEMPLATES: tuple[str, ...] = (
    "call {name} on {day} {part}",
    "turn {switch} the {device} in the {room}",
    "set a timer for {number} {unit}",
    "play {music} in the {room}",
    "what is the weather in {city} on {day}",
    "remind me to {task} on {day} {part}",
    "send {number} dollars to {name}",
    "my number is {digits}",
    "add {number} {item} to the shopping list",
    "book a table for {number} people on {day}",
    "turn {level} the {device} to {number} percent",
    "how far is it from {city} to {city}",
)


def sentence(rng: np.random.Generator) -> str:
    """Return one sentence of the domain."""
    text = TEMPLATES[int(rng.integers(len(TEMPLATES)))]
    while (start := text.find("{")) >= 0:
        end = text.index("}")
        text = text[:start] + _filler(text[start + 1 : end], rng) + text[end + 1 :]
    return text


def sentences(seed: int, *, distinct: bool = True) -> Iterator[str]:
    """Yield sentences, none of them twice if `distinct`.

    The domain holds some thousands beside the strings of digits, which is what distinct sentences come to in the end;
    otherwise every pattern keeps its share.
    """
    rng, seen = np.random.default_rng(seed), set()
    while True:
        text = sentence(rng)
        if distinct and text in seen:
            continue
        seen.add(text)
        yield text


def words() -> set[str]:
    """Return every word the domain can say."""
    fixed = " ".join(TEMPLATES).replace("{", " {").replace("}", "} ").split()
    listed = " ".join(text for values in SLOTS.values() for text in values).split()
    return {word for word in fixed if not word.startswith("{")} | {*listed, *_ONES, *_TENS}


def _filler(slot: str, rng: np.random.Generator) -> str:
    if slot == "number":
        return number(int(rng.integers(2, 100)))
    if slot == "digits":
        return " ".join(_ONES[int(digit)] for digit in rng.integers(0, 10, int(rng.integers(3, 7))))
    values = SLOTS[slot]
    return values[int(rng.integers(len(values)))]


def number(value: int) -> str:
    """Return 0 to 99 in words the domain has: 13 to 19 are read digit by digit."""
    if value <= 12:
        return _ONES[value]
    tens, ones = divmod(value, 10)
    if tens == 1:
        return f"one {_ONES[ones]}"
    return _TENS[tens - 2] if ones == 0 else f"{_TENS[tens - 2]} {_ONES[ones]}"
