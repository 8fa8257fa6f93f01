"""SYNTHETIC speech in the manner of AN4: spelled names, numbers, dates, orders, read by the synthesiser eSpeak NG.

No human voice is in it: easier than AN4, it shows that training works, not how well people would be understood.
Everything is made when it is loaded, in a second or two, by the library that the package espeakng-loader brings.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparse_train.data.speech import Clip, Speech

SEED = 1991
TRAINED, TESTED = 948, 130  # clips, as in AN4
SPEAKERS, TEST_SPEAKERS = 74, 10  # as in AN4
ACCENTS = ("en", "en-us", "en-gb-x-rp", "en-029")
# Of the library's voices those that say the same thing the same way twice; others waver with what was said before
VOICES = ("Denis", "Diogo", "Hugo", "Storm", "adam", "david", "edward2", "michel", "shelby")
TEST_VOICES = ("Henrique", "miguel", "mike2")

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
DIGITS = tuple("ZERO OH ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split())
TENS = tuple("TWENTY THIRTY FORTY FIFTY SIXTY SEVENTY EIGHTY NINETY".split())
ORDERS = tuple("ENTER ERASE RUBOUT REPEAT HELP GO STOP START YES NO".split())
MONTHS = tuple("JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER".split())
DAYS = tuple(
    "FIRST SECOND THIRD FOURTH FIFTH SIXTH SEVENTH EIGHTH NINTH TENTH ELEVENTH TWELFTH THIRTEENTH FOURTEENTH FIFTEENTH "
    "SIXTEENTH SEVENTEENTH EIGHTEENTH NINETEENTH TWENTIETH".split()
)

# Constants from the library's header
_AUDIO_OUTPUT_SYNCHRONOUS, _RATE, _PITCH, _UTF8, _PHONEMES = 2, 1, 3, 1, 0x100
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Speaker(NamedTuple):
    """A way to speak."""

    voice: str
    speed: int  # words a minute
    pitch: int  # of 100


def load(folder: Path) -> Speech:
    """Make a data set of AN4's size, always the same; ``folder`` is not used.

    The voices of its test clips do not occur in training.

    Raises ImportError: the package espeakng-loader is not installed; OSError: its library cannot be loaded; ValueError:
    it lacks one of the voices.
    """
    rng = np.random.default_rng(SEED)
    trained, tested = _speakers(rng, SPEAKERS, VOICES), _speakers(rng, TEST_SPEAKERS, TEST_VOICES)
    return Speech(
        tuple(say(_prompt(rng), trained[i % SPEAKERS]) for i in range(TRAINED)),
        tuple(say(_prompt(rng), tested[i % TEST_SPEAKERS]) for i in range(TESTED)),
    )


def load_few(folder: Path) -> Speech:
    """Make 40 clips of three letters or digits by four speakers, 8 of them for tests; otherwise like `load`."""
    rng = np.random.default_rng(SEED)
    speakers = _speakers(rng, 4, VOICES)
    clips = [say(_some(rng, (*LETTERS, *DIGITS), 3), speakers[i % 4]) for i in range(40)]
    return Speech(tuple(clips[8:]), tuple(clips[:8]))


def say(text: str, speaker: Speaker) -> Clip:
    """Speak ``text``, single letters by their names; raises what `load` raises."""
    library, rate, pieces = _library()
    if library.espeak_SetVoiceByName(speaker.voice.encode()):
        raise ValueError(f"eSpeak NG has no voice {speaker.voice!r}; install another version of espeakng-loader")
    library.espeak_SetParameter(_RATE, speaker.speed, 0)
    library.espeak_SetParameter(_PITCH, speaker.pitch, 0)
    sounds = re.sub(r"\bA\b", "[['eI]]", text).encode() + b"\0"  # else it may be taken for the article
    pieces.clear()
    if library.espeak_Synth(sounds, len(sounds), 0, 0, 0, _UTF8 | _PHONEMES, None, None):
        raise OSError(f"eSpeak NG could not say {text!r} as {speaker}")
    return Clip(np.concatenate(pieces), rate, text)


@cache
def _library() -> tuple[Any, int, list[np.ndarray]]:
    """Load the library, once a process; return it, its samples a second, and the list that its output is added to."""
    try:
        import espeakng_loader
    except ImportError:
        raise ImportError(
            "the data set espeak needs the package espeakng-loader; pip install espeakng-loader, or take another --data"
        ) from None
    library: Any = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    if rate <= 0:
        raise OSError(
            f"eSpeak NG did not find its voices in {espeakng_loader.get_data_path()}; reinstall espeakng-loader"
        )
    pieces: list[np.ndarray] = []

    @_Callback
    def collect(samples: Any, count: int, events: Any) -> int:
        if samples and count:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    library.espeak_SetSynthCallback(collect)
    library.collect = collect  # it must live as long as the library
    return library, rate, pieces


def _speakers(rng: np.random.Generator, count: int, voices: tuple[str, ...]) -> list[Speaker]:
    """Draw ``count`` speakers; several may have one voice, but hardly with the same accent, speed and pitch."""
    return [
        Speaker(
            f"{_some(rng, ACCENTS, 1)}+{_some(rng, voices, 1)}", int(rng.integers(130, 191)), int(rng.integers(30, 71))
        )
        for _ in range(count)
    ]


def _prompt(rng: np.random.Generator) -> str:
    kinds = (_name, _number, _date, _order)
    return kinds[rng.integers(len(kinds))](rng)


def _name(rng: np.random.Generator) -> str:
    return _some(rng, LETTERS, int(rng.integers(2, 9)))


def _number(rng: np.random.Generator) -> str:
    return _some(rng, DIGITS, int(rng.integers(1, 8)))


def _date(rng: np.random.Generator) -> str:
    year = f"NINETEEN {_some(rng, TENS, 1)}" + (f" {_some(rng, DIGITS[2:], 1)}" if rng.random() < 0.8 else "")
    return f"{_some(rng, MONTHS, 1)} {_some(rng, DAYS, 1)} {year}"


def _order(rng: np.random.Generator) -> str:
    signs = _some(rng, (*LETTERS, *DIGITS, *TENS), int(rng.integers(0, 6)))
    return f"{_some(rng, ORDERS, 1)} {signs}".rstrip()


def _some(rng: np.random.Generator, words: tuple[str, ...], count: int) -> str:
    return " ".join(words[i] for i in rng.integers(len(words), size=count))
