"""AN4, the "census" data of Carnegie Mellon University (1991): names, addresses, numbers and dates, spelled and spoken.

84 speakers read 948 clips for training and 130 for the test. Its makers offer it at http://www.speech.cs.cmu.edu.
"""

from __future__ import annotations

import re
from pathlib import Path

from sparse_train.data.sound import read
from sparse_train.data.speech import Clip, Speech, written

SUFFIXES = (".raw", ".sph", ".wav")  # of the sounds: bare, as in an4_raw, an4_sphere, or converted


def load(folder: Path) -> Speech:
    """Read the clips of AN4 from either of two layouts.

    As distributed: ``folder/an4`` or ``folder`` itself holds ``etc/an4_train.fileids``, ``etc/an4_train.transcription``
    and ``wav/an4_clstk/fash/an251-fash-b.raw`` (or ``.sph``, ``.wav``) and so on. As DeepSpeech's scripts convert it:
    ``folder/an4_dataset`` or ``folder`` holds ``train/an4/wav/*.wav`` and ``train/an4/txt/*.txt``. Tests likewise.

    Raises:
        FileNotFoundError: neither is there, or a file of it is missing.
        ValueError: a file is damaged, or clips and transcriptions do not fit together.
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
    return tuple(Clip(*read(_sound(root / "wav" / name)), texts[Path(name).name]) for name in names)


def _transcription(line: str) -> tuple[str, str] | None:
    """Return name and text of a line such as ``<s> ENTER SIX </s> (an251-fash-b)``, or None without a name."""
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
    return tuple(Clip(*read(_sound(root / "wav" / file.stem)), written(file.read_text())) for file in files)
