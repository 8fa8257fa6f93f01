"""Data sets are read from their standard files, and every rank gets its share, also when ranks are lost."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparse_mpi import World
from sparse_train.data import DATASETS, Images, Split
from sparse_train.data.share import Batches, Share, crop, mirror, shard
from sparse_train.data.small_images import load_cifar10, load_cifar100, load_fashion_mnist, load_scikit_digits
from sparse_train.tasks.images import extend, image_task


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_fashion(folder, suffix=".gz"):
    rng = np.random.default_rng(0)
    written = {}
    for name, count in (("train", 6), ("t10k", 4)):
        images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        labels = np.arange(count, dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array)
            path = folder / f"{name}-{kind}-ubyte{suffix}"
            path.write_bytes(gzip.compress(content) if suffix else content)
        written[name] = images
    return written


class Python2Pickler(pickle._Pickler):
    """Writes strings as Python 2 did, whose strings were bytes."""

    dispatch = pickle._Pickler.dispatch.copy()

    def save_string(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)

    dispatch[str] = dispatch[bytes] = save_string


def cifar_file(label_key, seed, count=3):
    """Return a batch as in the archives, a dictionary pickled by Python 2, and the images in it."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072)).astype(np.uint8)
    file = io.BytesIO()
    batch = {"data": pixels, label_key: list(range(count)), "batch_label": "a batch"}
    Python2Pickler(file, protocol=2).dump(batch)
    content = file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    return content, pixels.reshape(-1, 3, 32, 32)


CIFAR = {
    "cifar10": (
        "cifar-10",
        "cifar-10-batches-py",
        [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"],
        b"labels",
    ),
    "cifar100": ("cifar-100", "cifar-100-python", ["train", "test"], b"fine_labels"),
}


def write_cifar(folder, name, packed):
    """Its archive, or the folder this unpacks to; the images of each file."""
    archive, unpacked, files, label_key = CIFAR[name]
    made = {file: cifar_file(label_key, seed) for seed, file in enumerate(files)}
    if not packed:
        (folder / unpacked).mkdir()
        for file, (content, _) in made.items():
            (folder / unpacked / file).write_bytes(content)
    else:
        with tarfile.open(folder / f"{archive}-python.tar.gz", "w:gz") as tar:
            for file, (content, _) in made.items():
                member = tarfile.TarInfo(f"{unpacked}/{file}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return [images for _, images in made.values()]


def test_digits_come_with_scikit_learn_and_are_cut_alike_every_time():
    data = load_scikit_digits(Path("nowhere"))
    assert data.train.images.shape == (1437, 1, 8, 8) and data.test.images.shape == (360, 1, 8, 8)
    assert data.train.images.dtype == np.uint8 and data.train.images.max() == 255
    assert set(data.test.labels) == set(range(10)) == set(data.train.labels)
    assert np.array_equal(data.train.images, load_scikit_digits(Path("nowhere")).train.images)


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_fashion_mnist_is_read_from_idx_files(tmp_path, suffix):
    written = write_fashion(tmp_path, suffix)
    data = DATASETS["fashion-mnist"].load(tmp_path)
    assert np.array_equal(data.train.images[:, 0], written["train"])
    assert np.array_equal(data.test.images[:, 0], written["t10k"])
    assert data.train.labels.tolist() == list(range(6)) and data.train.labels.dtype == np.int64


def test_images_and_labels_must_fit_together(tmp_path):
    write_fashion(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))))
    with pytest.raises(ValueError, match="do not fit together"):
        load_fashion_mnist(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", CIFAR)
def test_cifar_is_read_from_its_archive_and_its_folder(tmp_path, name, packed):
    *train, test = write_cifar(tmp_path, name, packed)
    (inside,) = tmp_path.iterdir()
    for place in (tmp_path, inside):
        data = DATASETS[name].load(place)
        assert np.array_equal(data.train.images, np.concatenate(train))
        assert np.array_equal(data.test.images, test)
        assert data.train.labels.tolist() == [0, 1, 2] * len(train) and data.train.labels.dtype == np.int64
        assert data.classes == {"cifar10": 10, "cifar100": 100}[name]


class Evil:
    def __reduce__(self):
        return print, ("run from a pickle",)


@pytest.mark.parametrize("content", [pickle.dumps(Evil()), b"", b"junk", pickle.dumps({b"data": 1}, protocol=2)])
def test_damaged_or_malicious_cifar_files_are_refused(tmp_path, content, capsys):
    write_cifar(tmp_path, "cifar100", packed=False)
    (tmp_path / "cifar-100-python" / "train").write_bytes(content)
    with pytest.raises(ValueError, match="CIFAR file train is damaged"):
        load_cifar100(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_damaged_or_wrong_archive_is_refused(tmp_path):
    write_cifar(tmp_path, "cifar100", packed=True)
    archive = tmp_path / "cifar-100-python.tar.gz"
    with pytest.raises(ValueError, match="another archive"):
        load_cifar10(archive)
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"damaged|another archive"):
        load_cifar100(tmp_path)


@pytest.mark.parametrize(("count", "batch", "size"), [(1437, 16, 4), (100, 16, 4), (17, 4, 3), (8, 16, 4), (64, 8, 1)])
def test_shards_are_a_partition_of_equal_steps(count, batch, size):
    shards = list(zip(*shard(count, batch, size, seed=3, epoch=5), strict=True))
    assert len({len(mine) for mine in shards}) == 1
    assert sorted(np.concatenate([part for mine in shards for part in mine])) == list(range(count))
    lengths = {len(part) for mine in shards for part in mine}
    assert max(lengths) - min(lengths) <= 1 and min(lengths) >= min(batch, count // size)


def test_sorted_shards_are_a_partition_by_label_in_a_new_order_each_epoch():
    labels = np.random.default_rng(0).integers(0, 10, 103)

    def shards(epoch):
        return [np.concatenate(parts) for parts in zip(*shard(103, 4, 5, 3, epoch, labels), strict=True)]

    first, second = shards(0), shards(1)
    assert sorted(np.concatenate(first)) == list(range(103))
    for one, other in zip(first, second, strict=True):
        assert set(one) == set(other) and one.tolist() != other.tolist()
    assert all(labels[a].max() <= labels[b].min() for a, b in zip(first, first[1:], strict=False))


def test_shards_depend_on_seed_and_epoch_alone():
    def order(seed, epoch):
        return np.concatenate([parts[1] for parts in shard(100, 5, 4, seed, epoch)]).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1) != order(2, 1)
    with pytest.raises(ValueError, match="7 training samples are too few for 4 ranks"):
        shard(7, 2, 4, 1, 0)


def small_images(train=20, test=7):
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (n, 3, 8, 8)).astype(np.uint8) for n in (train, test)]
    return Images(*(Split(x, np.arange(len(x)) % 10) for x in images), classes=10)


def test_batches_are_normalised_and_cover_train_and_test():
    images = small_images()
    seen = {"train": [], "test": []}
    for rank in range(3):
        batches = Batches(images, 3, Share(rank, 3), seed=1)
        seen["train"] += batches.train(0)
        seen["test"] += batches.test()
        assert batches.channels == 3 and batches.steps == 2
    for name, split in (("train", images.train), ("test", images.test)):
        labels = torch.cat([labels for _, labels in seen[name]])
        assert sorted(labels.tolist()) == sorted(split.labels.tolist())
    pixels = torch.cat([x for x, _ in seen["train"]])
    assert pixels.dtype == torch.float32
    assert pixels.mean((0, 2, 3)).abs().max() < 1e-5
    assert (pixels.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_batches_are_resized_and_varied_alike_each_time():
    batches = Batches(small_images(), 4, Share(0, 1), seed=1, image_size=12, padding=2, flip=True)
    first, again, later = (next(batches.train(epoch))[0] for epoch in (0, 0, 1))
    assert first.shape == (4, 3, 12, 12)
    assert torch.equal(first, again) and not torch.equal(first, later)
    assert next(batches.test())[0].shape == (7, 3, 12, 12)


def test_each_step_is_varied_by_itself():
    images = small_images()
    images = images._replace(train=Split(np.repeat(images.train.images[:1], 20, 0), images.train.labels))
    per_rank = [Batches(images, 5, Share(rank, 2), seed=1, padding=3, flip=True) for rank in range(2)]
    whole = [[x for x, _ in batches.train(3)] for batches in per_rank]
    assert torch.equal(next(per_rank[0].train(3, 1))[0], whole[0][1])
    drawn = [x.numpy().tobytes() for steps in whole for x in steps]
    assert len(set(drawn)) == len(drawn) == 4
    assert list(per_rank[0].train(3, 2)) == []


def test_crop_shifts_and_mirror_mirrors():
    images = torch.arange(1.0, 17).reshape(1, 1, 4, 4).repeat(200, 2, 1, 1)
    rng = np.random.default_rng(0)
    cropped = crop(images, 1, rng)
    frame = torch.nn.functional.pad(images[:1], [1] * 4)
    shifts = [frame[0, :, top : top + 4, left : left + 4] for top in range(3) for left in range(3)]
    found = [[torch.equal(one, shift) for shift in shifts] for one in cropped]
    assert all(sum(row) == 1 for row in found) and all(any(column) for column in zip(*found, strict=True))
    mirrored = mirror(images, rng)
    flipped = [torch.equal(one, images[0].flip(2)) for one in mirrored]
    assert 50 < sum(flipped) < 150
    assert all(f or torch.equal(one, images[0]) for f, one in zip(flipped, mirrored, strict=True))


COUNT, BATCH = 101, 3


@st.composite
def losses(draw):
    """Draw a number of ranks, and after which step each of some of them is lost, but not all."""
    ranks = draw(st.integers(2, 6))
    steps = COUNT // (BATCH * ranks)
    lost = draw(st.dictionaries(st.integers(0, ranks - 1), st.integers(0, steps - 3), max_size=ranks - 1))
    return ranks, lost, draw(st.integers(1, 2))


@given(losses(), st.booleans())
def test_an_epoch_has_each_sample_once(drawn, by_label):
    """A rank that is lost in a step is known to be so a step or two later."""
    ranks, lost, delay = drawn
    labels = np.arange(COUNT) % 7 if by_label else None
    parts = shard(COUNT, BATCH, ranks, seed=1, epoch=4, labels=labels)
    shares, left, seen = [Share(rank, ranks) for rank in range(ranks)], list(range(ranks)), []
    for step in range(len(parts)):
        gone = [rank for rank in left if rank in lost and step >= min(lost[rank] + delay, len(parts) - 1)]
        if gone:
            left = [rank for rank in left if rank not in gone]
            missed = [(before, rank) for rank in gone for before in range(lost[rank], step)]
            for share in shares:
                share.deal(4, step, left, missed)
        taken = {rank: shares[rank].take(parts, 4, step)[0] for rank in left}
        assert max(map(len, taken.values())) - min(map(len, taken.values())) <= 1
        seen += [part for rank, part in taken.items() if step < lost.get(rank, COUNT)]
    assert sorted(np.concatenate(seen)) == list(range(COUNT))


def test_later_epochs_are_dealt_to_those_that_are_left():
    share, parts = Share(2, 3), shard(COUNT, BATCH, 3, seed=1, epoch=7)
    share.deal(2, 5, [0, 2], [(4, 1)])
    assert share.take(parts, 7)[0].tolist() == np.array_split(np.concatenate(parts[0]), 2)[1].tolist()


def test_two_losses_before_one_step_are_both_made_up_for():
    parts = shard(COUNT, BATCH, 3, seed=1, epoch=0)
    share = Share(2, 3)
    share.deal(0, 4, [0, 2], [(3, 1)])
    share.deal(0, 4, [2], [(3, 0)])
    dealt = np.concatenate([parts[3][1], parts[3][0], *parts[4]])
    assert share.take(parts, 0, 4)[0].tolist() == dealt.tolist()


def digits(comm, **changes):
    values = {"data": "digits", "data_dir": Path("nowhere"), "batch_size": 16, "seed": 1}
    args = SimpleNamespace(
        **(values | {"augment": True, "image_size": None, "shards": "shuffled", "spares": 0} | changes)
    )
    return image_task(args, comm, lambda seen: nn.Sequential(nn.Flatten(), nn.Linear(64 * seen.channels, seen.classes)))


def test_what_is_judged_adds_up_to_mean_loss_and_accuracy():
    (task,) = World(1).run(digits)
    batches = list(task.test())
    outputs = torch.cat([task.model(images) for images, _ in batches])
    labels = torch.cat([labels for _, labels in batches])
    results = [task.forward_and_loss(batch) for batch in batches]
    sums = sum(sums for _, sums in results)
    loss = -outputs.log_softmax(1)[range(360), labels].mean()
    right = (outputs.argmax(1) == labels).float().mean()
    assert task.scores(sums) == {"loss": pytest.approx(loss.item()), "accuracy": pytest.approx(right.item())}
    assert list(task.scores(sums)) == ["loss", task.headline] and sums[0] == 360
    results[0][0].backward()
    assert task.model[1].weight.grad.any()


def test_options_for_images():
    parser = ArgumentParser()
    extend(parser)
    assert vars(parser.parse_args([])) == {"image_size": None, "augment": True, "shards": "shuffled"}
    args = parser.parse_args(["--image-size", "5", "--no-augment"])
    (task,) = World(1).run(lambda comm: digits(comm, batch_size=1437, **vars(args)))
    (plain,) = World(1).run(lambda comm: digits(comm, batch_size=1437, augment=False))
    (varied,) = World(1).run(lambda comm: digits(comm, batch_size=1437))
    seen = [next(task.train(0))[0] for task in (task, plain, varied)]
    assert [images.shape[2:] for images in seen] == [(5, 5), (8, 8), (8, 8)]
    assert not torch.equal(seen[1], seen[2])
