"""Data sets of speech: clips of sound with their texts, written in 28 characters.

AN4 is the "census" data of Carnegie Mellon University (1991): names, addresses, numbers and dates, spelled and spoken.
84 speakers read 948 clips for training and 130 for the test. Its makers offer it at http://www.speech.cs.cmu.edu.

The announcements of the Asterisk telephone exchange, read by one speaker, are 25 minutes of recorded English at 8 kHz.
Debian's packages asterisk-core-sounds-en-wav and asterisk-core-sounds-en (the texts) install them.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparse_train.data.sound import read_sound

BLANK = "_"  # nothing, or the end of a character, of CTC; code 0
ALPHABET = BLANK + "'ABCDEFGHIJKLMNOPQRSTUVWXYZ "
_CODES = {character: code for code, character in enumerate(ALPHABET)}


class Clip(NamedTuple):
    """An utterance."""

    samples: np.ndarray  # (N,) int16
    rate: int  # samples a second
    text: str  # of the characters of `ALPHABET`, without blanks


class Speech(NamedTuple):
    """A data set of speech, the same on all ranks."""

    train: tuple[Clip, ...]
    test: tuple[Clip, ...]


def written(text: str) -> str:
    """Return ``text`` in capitals, with single spaces between words, without characters that `ALPHABET` lacks."""
    return " ".join(re.sub("[^A-Z']", " ", text.upper()).split())


def encode(text: str) -> np.ndarray:
    """Return the codes of the characters of ``text``: ``(len(text),)`` int64.

    Raises KeyError: one that is not in `ALPHABET`.
    """
    return np.array([_CODES[character] for character in text], np.int64)


def decode(codes: np.ndarray) -> str:
    """Return the text from which `encode` makes these codes."""
    return "".join(ALPHABET[code] for code in codes)


SUFFIXES = (".raw", ".sph", ".wav")  # of the sounds: bare, as in an4_raw, an4_sphere, or converted


def load_an4(folder: Path) -> Speech:
    """Read the clips of AN4 from either of two layouts.

    As distributed: ``folder/an4`` or ``folder`` itself holds ``etc/an4_train.fileids``, ``etc/an4_train.transcription``
    and ``wav/an4_clstk/fash/an251-fash-b.raw`` (or ``.sph``, ``.wav``) and so on. As DeepSpeech's scripts convert it:
    ``folder/an4_dataset`` or ``folder`` holds ``train/an4/wav/*.wav`` and ``train/an4/txt/*.txt``. Tests likewise.

    Raises FileNotFoundError: neither is there, or a file of it is missing; ValueError: a file is damaged, or clips and
    transcriptions do not fit together.
    """
    for root in (folder / "an4", folder):
        if (root / "etc" / "an4_train.fileids").is_file():
            return Speech(_distributed(root, "train"), _distributed(root, "test"))
    for root in (folder / "an4_dataset", folder):
        if (root / "train" / "an4" / "txt").is_dir():
            return Speech(_converted(root / "train" / "an4"), _converted(root / "test" / "an4"))
    raise FileNotFoundError(
        f"no an4/etc/an4_train.fileids in {folder}, nor an4_dataset/train/an4/txt; fetch an4_raw.bigendian.tar.gz or "
        "an4_sphere.tar.gz of Carnegie Mellon University, unpack it, and name the folder that holds an4 with --data-dir"
    )


def _distributed(root: Path, part: str) -> tuple[Clip, ...]:
    names = (root / "etc" / f"an4_{part}.fileids").read_text().split()
    lines = (root / "etc" / f"an4_{part}.transcription").read_text().splitlines()
    texts = dict(filter(None, map(_transcription, lines)))
    missing = [name for name in names if Path(name).name not in texts]
    if missing or not names:
        raise ValueError(
            f"{root}/etc: an4_{part}.fileids names {len(names)} clips, and an4_{part}.transcription has no text for "
            f"{len(missing)} of them ({', '.join(missing[:3])}); fetch AN4 again"
        )
    return tuple(Clip(*read_sound(_sound(root / "wav" / name)), texts[Path(name).name]) for name in names)


def _transcription(line: str) -> tuple[str, str] | None:
    parts = re.fullmatch(r"(.*)\(([^()]+)\)\s*", line)
    return (parts[2], written(re.sub(r"<[^>]*>", " ", parts[1]))) if parts else None


def _sound(stem: Path) -> Path:
    for suffix in SUFFIXES:
        path = stem.with_name(stem.name + suffix)
        if path.is_file():
            return path
    raise FileNotFoundError(f"no {stem.name}{', '.join(SUFFIXES)} in {stem.parent}; unpack all of AN4's archive there")


def _converted(root: Path) -> tuple[Clip, ...]:
    files = sorted((root / "txt").glob("*.txt"))
    if not files:
        raise FileNotFoundError(f"no *.txt in {root / 'txt'}; convert all of AN4, or name another --data-dir")
    return tuple(Clip(*read_sound(_sound(root / "wav" / file.stem)), written(file.read_text())) for file in files)


TEXTS = "core-sounds-en.txt"
MAX_SECONDS = 20  # of a clip that is taken; few are longer, up to a minute
TESTED = 10  # every tenth clip, in order of name, is for tests
SPOKEN = dict(zip("0123456789*#", "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE STAR POUND".split(), strict=True))


def load_asterisk(folder: Path) -> Speech:
    """Read the announcements that have words, except those with numbers above 9, which can be read in several ways.

    ``folder`` is Debian's ``/usr/share``, with ``doc/asterisk-core-sounds-en`` and ``asterisk/sounds``; or what the
    upstream archive unpacks to, texts and sounds together.

    Raises FileNotFoundError: texts or sounds are not there; ValueError: a sound is damaged, or there are too few to
    test with.
    """
    texts, sounds = _find_texts(folder), _find_sounds(folder)
    clips = []
    for name, text in sorted(texts.items()):
        path = sounds / f"{name}.wav"
        if text and path.is_file():
            sound = read_sound(path)
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
