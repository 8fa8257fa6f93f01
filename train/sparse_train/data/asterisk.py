"""Announcements of the Asterisk telephone exchange, read by one speaker: 25 minutes of recorded English at 8 kHz.

Debian's packages asterisk-core-sounds-en-wav and asterisk-core-sounds-en (the texts) install them.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from sparse_train.data.sound import read
from sparse_train.data.speech import Clip, Speech, written

TEXTS = "core-sounds-en.txt"
MAX_SECONDS = 20  # of a clip that is taken; few are longer, up to a minute
TESTED = 10  # every tenth clip, in order of name, is for tests
SPOKEN = dict(zip("0123456789*#", "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE STAR POUND".split(), strict=True))


def load(folder: Path) -> Speech:
    """Read the announcements that have words, except those with numbers above 9, which can be read in several ways.

    ``folder`` is Debian's ``/usr/share``, with ``doc/asterisk-core-sounds-en`` and ``asterisk/sounds``; or what the
    upstream archive unpacks to, texts and sounds together.

    Raises:
        FileNotFoundError: texts or sounds are not there.
        ValueError: a sound is damaged, or there are too few to test with.
    """
    texts, sounds = _find_texts(folder), _find_sounds(folder)
    clips = []
    for name, text in sorted(texts.items()):
        path = sounds / f"{name}.wav"
        if text and path.is_file():
            sound = read(path)
            if len(sound.samples) <= MAX_SECONDS * sound.rate:
                clips.append(Clip(*sound, text))
    if len(clips) < TESTED:
        raise ValueError(f"{sounds} has {len(clips)} of the announcements of {TEXTS}; install both packages again")
    train = tuple(clip for number, clip in enumerate(clips) if number % TESTED)
    return Speech(train, tuple(clips[::TESTED]))


def transcriptions(lines: str) -> dict[str, str]:
    """Return texts by name, from lines ``name: text``; a text is empty where its words are unknown, see `spoken`."""
    pairs = (line.split(":", 1) for line in lines.splitlines() if not line.startswith(";") and ":" in line)
    return {name.strip(): spoken(text) for name, text in pairs}


def spoken(text: str) -> str:
    """Return the words of ``text`` without ``[noises]``, ``(remarks)`` and ``<noises>``.

    The result is empty if ``text`` has numbers of several digits.

    >>> spoken("Dial 2, then # [beep]")
    'DIAL TWO THEN POUND'
    """
    text = re.sub(r"\[.*?\]|\(.*?\)|<.*?>", " ", text)
    text = re.sub(r"(?<![\w.])[0-9](?![\w]|\.\w)|[*#]", lambda sign: f" {SPOKEN[sign[0]]} ", text)
    return "" if re.search("[0-9]", text) else written(text)


def _find_texts(folder: Path) -> dict[str, str]:
    for place in (folder / "doc" / "asterisk-core-sounds-en", folder):
        if (place / f"{TEXTS}.gz").is_file():
            return transcriptions(gzip.decompress((place / f"{TEXTS}.gz").read_bytes()).decode())
        if (place / TEXTS).is_file():
            return transcriptions((place / TEXTS).read_text(encoding="utf-8"))
    raise FileNotFoundError(
        f"no {TEXTS} or {TEXTS}.gz in {folder} or its doc/asterisk-core-sounds-en; install Debian's package "
        "asterisk-core-sounds-en, or name the folder that has it with --data-dir"
    )


def _find_sounds(folder: Path) -> Path:
    for place in (*sorted((folder / "asterisk" / "sounds").glob("en*")), folder):
        if any(place.glob("*.wav")):
            return place
    raise FileNotFoundError(
        f"no *.wav in {folder} or its asterisk/sounds/en*; install Debian's package asterisk-core-sounds-en-wav, "
        "or name the folder that has them with --data-dir"
    )
