"""Speech is read from its standard files or made by a synthesiser, and seen as spectrograms."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from sparse_train.data import speech
from sparse_train.data.speech import (
    ALPHABET,
    BINS,
    decode,
    encode,
    load_an4,
    log_spectrogram,
    read_sound,
    written,
)

SPHERE = b"NIST_1A\n   1024\nsample_rate -i 16000\nchannel_count -i 1\nsample_byte_format -s2 %s\nend_head\n"


def noise(seed, count=400):
    return np.random.default_rng(seed).integers(-(2**15), 2**15, count).astype(np.int16)


def write(path, samples, rate=16_000, channels=1, width=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".wav":
        with wave.open(str(path), "wb") as file:
            file.setparams((channels, width, rate, 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())
    else:
        header = (SPHERE % b"10").ljust(1024) if path.suffix == ".sph" else b""
        path.write_bytes(header + samples.astype(">i2").tobytes())


@pytest.mark.parametrize("suffix", [".wav", ".raw", ".sph"])
def test_sounds_are_read_in_their_order_of_bytes(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    write(path, noise(1))
    sound = read_sound(path)
    assert sound.rate == 16_000 and sound.samples.dtype == np.int16 and np.array_equal(sound.samples, noise(1))
    if suffix == ".sph":
        path.write_bytes((SPHERE % b"01").ljust(1024) + noise(1).tobytes())
        assert np.array_equal(read_sound(path).samples, noise(1))


def test_sounds_of_two_channels_are_refused(tmp_path):
    write(tmp_path / "x.wav", noise(1), channels=2)
    with pytest.raises(ValueError, match=r"2 channels of 2 bytes a sample; expected 1 of 2"):
        read_sound(tmp_path / "x.wav")


@pytest.mark.parametrize("suffix", [".wav", ".raw", ".sph"])
@pytest.mark.parametrize("root", ["", "an4"])
def test_an4_is_read_as_distributed(tmp_path, suffix, root):
    base = tmp_path / root
    lines = {"train": "<s> ENTER SIX </s> (an1-a-b)\n<s> YES </s> (an2-a-b)\n", "test": "O'HARE (an3-c-b)\n\n"}
    names = {"train": ["fash/an2-a-b", "fash/an1-a-b"], "test": ["fcaw/an3-c-b"]}
    for part in lines:
        (base / "etc").mkdir(parents=True, exist_ok=True)
        (base / "etc" / f"an4_{part}.transcription").write_text(lines[part])
        ids = [f"an4_clstk/{name}" for name in names[part]]
        (base / "etc" / f"an4_{part}.fileids").write_text("\n".join(ids))
        for seed, name in enumerate(ids):
            write(base / "wav" / f"{name}{suffix}", noise(seed))
    speech = load_an4(tmp_path)
    assert [clip.text for clip in speech.train] == ["YES", "ENTER SIX"]
    assert [clip.text for clip in speech.test] == ["O'HARE"]
    assert np.array_equal(speech.train[1].samples, noise(1)) and speech.train[1].rate == 16_000
    (base / "wav" / f"{ids[0]}{suffix}").unlink()
    with pytest.raises(FileNotFoundError, match=r"an3-c-b\.raw.*unpack all"):
        load_an4(tmp_path)
    (base / "etc" / "an4_train.transcription").write_text("")
    with pytest.raises(ValueError, match=r"no text for 2 of them \(an4_clstk/fash/an2-a-b"):
        load_an4(tmp_path)


def test_synthetic_speech_is_the_same_every_time():
    pytest.importorskip("espeakng_loader")
    first, again = (speech.load_few(Path()) for _ in range(2))
    assert len(first.train) == 32 and len(first.test) == 8
    for a, b in zip(first.train + first.test, again.train + again.test, strict=True):
        assert a.text == b.text and a.rate == b.rate == 22_050 and np.array_equal(a.samples, b.samples)
        assert 0.4 < len(a.samples) / a.rate < 2 and np.abs(a.samples.astype(int)).max() > 2000
    with pytest.raises(ValueError, match="no voice 'xx'"):
        speech.say("A", speech.Speaker("xx", 150, 50))


def test_prompts_are_in_the_alphabet_and_voices_of_tests_are_others():
    rng = np.random.default_rng(0)
    for prompt in (speech._prompt(rng) for _ in range(300)):
        assert prompt and written(prompt) == prompt and decode(encode(prompt)) == prompt
    assert not set(speech.VOICES) & set(speech.TEST_VOICES)


def test_texts_are_written_in_28_characters():
    assert len(ALPHABET) == 29 and written(" O'Hare-field,\n no.  7 ") == "O'HARE FIELD NO"
    assert encode("A 'Z").tolist() == [2, 28, 1, 27] and encode("A").dtype == np.int64
    with pytest.raises(KeyError):
        encode("7")


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050])
def test_a_tone_is_in_its_bin_at_every_rate(rate):
    tone = (8000 * np.sin(2 * np.pi * 1000 * np.arange(rate) / rate)).astype(np.int16)
    spectrogram = log_spectrogram(tone, rate)
    assert spectrogram.shape[0] == BINS and abs(spectrogram.shape[1] - 99) <= 2 and spectrogram.dtype == np.float32
    assert (spectrogram.argmax(0) == 20).all()
    assert abs(spectrogram.mean()) < 1e-4 and abs(spectrogram.std() - 1) < 1e-3
    if rate < 16_000:
        assert np.ptp(spectrogram[rate // 100 + 1 :]) == 0


def test_spectrograms_of_next_to_nothing_are_finite():
    assert log_spectrogram(np.zeros(1, np.int16), 16_000).shape == (BINS, 1)
    assert not log_spectrogram(np.zeros(700, np.int16), 16_000).any()
