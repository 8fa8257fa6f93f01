"""Sound files of one channel of 16 bits, and their log spectrograms, the input of DeepSpeech.

The formats are RIFF (``.wav``), NIST SPHERE (``.sph``), and bare samples (``.raw``).

SYNTHETIC speech in the manner of AN4: spelled names, numbers, dates, orders, read by the synthesiser eSpeak NG.

No human voice is in it: easier than AN4, it shows that training works, not how well people would be understood.
Everything is made when it is loaded, in a second or two, by the library that the package espeakng-loader brings.

Data sets of speech: clips of sound with their texts, written in 28 characters.

AN4 is the "census" data of Carnegie Mellon University (1991): names, addresses, numbers and dates, spelled and spoken.
84 speakers read 948 clips for training and 130 for the test. Its makers offer it at http://www.speech.cs.cmu.edu.
"""

from __future__ import annotations

import ctypes
import re
import wave
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sparse_train.packages import needed

RAW_RATE = 16_000  # rate of files without a header, which are AN4's, as is their order of bytes
_ORDERS = {b"01": "<i2", b"10": ">i2"}  # SPHERE's names of little and big endian
BINS = 161  # bins of 50 Hz, from 0 to 8 kHz
WINDOWS = 50  # windows in a second: 20 ms each
STRIDES = 100  # a second
SEED = 1991
TRAINED, TESTED = 948, 130  # clips, as in AN4
SPEAKERS, TEST_SPEAKERS = 74, 10  # numbers of speakers, those of AN4
ACCENTS = ("en", "en-us", "en-gb-x-rp", "en-029")
# Of the library's voices, the ones that say the same text the same way twice; others waver with earlier text
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
BLANK = "_"  # nothing, or the end of a character, of CTC; code 0
ALPHABET = BLANK + "'ABCDEFGHIJKLMNOPQRSTUVWXYZ "
_CODES = {character: code for code, character in enumerate(ALPHABET)}
SUFFIXES = (".raw", ".sph", ".wav")  # suffixes of the sounds: bare, as in an4_raw, an4_sphere, or converted


class Sound(NamedTuple):
    samples: np.ndarray  # (N,) int16
    rate: int  # samples a second


def read_sound(path: Path) -> Sound:
    """Read the sound in ``path``, whose suffix names the format.

    Raises ValueError: another format inside, more than one channel, samples other than 16-bit integers.
    """
    if path.suffix == ".raw":
        return _sound(path, path.read_bytes(), ">i2", RAW_RATE)
    return _read_sphere(path) if path.suffix == ".sph" else _read_wav(path)


def _read_wav(path: Path) -> Sound:
    try:
        with wave.open(str(path)) as file:
            kind, rate, content = file.getparams()[:2], file.getframerate(), file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path} is no RIFF file of plain samples: {error}") from None
    if kind != (1, 2):
        raise ValueError(f"{path} has {kind[0]} channels of {kind[1]} bytes a sample; expected 1 of 2 bytes")
    return _sound(path, content, "<i2", rate)


def _read_sphere(path: Path) -> Sound:
    content = path.read_bytes()
    title, _, rest = content.partition(b"\n")
    length = rest.partition(b"\n")[0].strip()  # length of the header, with these two lines
    if title != b"NIST_1A" or not length.isdigit():
        raise ValueError(f"{path} is no SPHERE file: it starts with {content[:8]!r}")
    lines = (line.split(None, 2) for line in content[: int(length)].splitlines()[2:])
    fields = {line[0]: line[2] for line in lines if len(line) == 3}
    channels, coding = fields.get(b"channel_count", b"1"), fields.get(b"sample_coding", b"pcm")
    order, rate = _ORDERS.get(fields.get(b"sample_byte_format", b"")), fields.get(b"sample_rate", b"")
    if channels != b"1" or coding != b"pcm" or order is None or not rate.isdigit():
        raise ValueError(f"{path} is no SPHERE file of one channel of plain 16-bit samples: its header says {fields}")
    return _sound(path, content[int(length) :], order, int(rate))


def _sound(path: Path, content: bytes, order: str, rate: int) -> Sound:
    if len(content) % 2 or not content:
        raise ValueError(f"{path} is damaged: {len(content)} bytes of samples of 2 bytes; fetch it again")
    return Sound(np.frombuffer(content, order).astype(np.int16), rate)


def log_spectrogram(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return ``(BINS, frames)`` float32, log magnitudes of the short-time Fourier transform of ``(N,)`` int16 samples.

    They have mean 0 and deviation 1. Windows of 20 ms make bins 50 Hz apart at any ``rate`` in Hz, so that sounds need
    no resampling: below 16 kHz the upper bins are silent, above it bins over 8 kHz are left out.
    """
    window, stride = round(rate / WINDOWS), round(rate / STRIDES)
    sound = np.pad(samples.astype(np.float32) / 2**15, (0, max(0, window - len(samples))))
    frames = sliding_window_view(sound, window)[::stride] * np.hamming(window).astype(np.float32)
    levels = np.log1p(np.abs(np.fft.rfft(frames)[:, :BINS])).astype(np.float32)
    spectrogram = np.zeros((BINS, len(levels)), np.float32)
    spectrogram[: levels.shape[1]] = levels.T
    return (spectrogram - spectrogram.mean()) / max(spectrogram.std(), 1e-6)


class Speaker(NamedTuple):
    voice: str
    speed: int  # words a minute
    pitch: int  # percent


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
    """Speak ``text``, single letters by their names; raises as `load` does."""
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
    loader = needed("espeakng_loader", "--data espeak")
    library: Any = ctypes.CDLL(loader.get_library_path())
    voices = loader.get_data_path()
    rate = library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, 0, voices.encode(), 0)
    if rate <= 0:
        raise OSError(f"eSpeak NG did not find its voices in {voices}; reinstall espeakng-loader")
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


class Clip(NamedTuple):
    samples: np.ndarray  # (N,) int16
    rate: int  # samples a second
    text: str  # characters of `ALPHABET`, without blanks


class Speech(NamedTuple):
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
    return "".join(ALPHABET[code] for code in codes)


def load_an4(folder: Path) -> Speech:
    """Read the clips of AN4 as it is distributed.

    ``folder/an4`` or ``folder`` itself holds ``etc/an4_train.fileids``, ``etc/an4_train.transcription`` and
    ``wav/an4_clstk/fash/an251-fash-b.raw`` (or ``.sph``, ``.wav``) and so on. Tests likewise.

    Raises FileNotFoundError: neither is there, or a file of it is missing; ValueError: a file is damaged, or clips and
    transcriptions do not fit together.
    """
    for root in (folder / "an4", folder):
        if (root / "etc" / "an4_train.fileids").is_file():
            return Speech(_distributed(root, "train"), _distributed(root, "test"))
    raise FileNotFoundError(
        f"no an4/etc/an4_train.fileids in {folder}; fetch an4_raw.bigendian.tar.gz or an4_sphere.tar.gz of Carnegie "
        "Mellon University, unpack it, and name the folder that holds an4 with --data-dir"
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
    return tuple(Clip(*read_sound(_recording(root / "wav" / name)), texts[Path(name).name]) for name in names)


def _transcription(line: str) -> tuple[str, str] | None:
    parts = re.fullmatch(r"(.*)\(([^()]+)\)\s*", line)
    return (parts[2], written(re.sub(r"<[^>]*>", " ", parts[1]))) if parts else None


def _recording(stem: Path) -> Path:
    for suffix in SUFFIXES:
        path = stem.with_name(stem.name + suffix)
        if path.is_file():
            return path
    raise FileNotFoundError(f"no {stem.name}{', '.join(SUFFIXES)} in {stem.parent}; unpack all of AN4's archive there")
