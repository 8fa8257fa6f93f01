"""Trees of image files are read batch by batch, each rank its share, alike every time."""

from __future__ import annotations

import threading
from argparse import Namespace

import numpy as np
import pytest
import torch

from sparse_mpi.comm.world import World
from sparse_train.data import DATASETS
from sparse_train.data.imagenet import DEVIATION, MEAN, FolderBatches, ahead, cut, middle, read_image
from sparse_train.data.share import Share

Image = pytest.importorskip("PIL.Image")

CLASSES = ("n01440764", "n02085620", "n03000684")
COLOURS = ((250, 20, 20), (20, 250, 20), (20, 20, 250))  # of the classes


def save(path, colour=(0, 0, 0), size=(40, 30), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


@pytest.fixture
def tree(tmp_path):
    """12 training and 6 validation images of 3 classes, each class of one colour."""
    for name, colour in zip(CLASSES, COLOURS, strict=True):
        for number in range(4):
            save(tmp_path / "train" / name / f"{name}_{number}.JPEG", colour, (40 + number, 30))
        for number in range(2):
            save(tmp_path / "val" / name / "images" / f"ILSVRC2012_val_{number}.jpg", colour)
        (tmp_path / "train" / name / "notes.txt").write_text("no image")
    return tmp_path


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_share_the_images_and_labels_fit(tree, size):
    labels = {"train": [], "test": []}
    for rank in range(size):
        batches = FolderBatches(tree, 2, Share(rank, size), seed=1, image_size=16)
        assert (batches.classes, batches.channels, batches.steps) == (3, 3, 6 // size)
        for name in labels:
            for images, these in batches.train(0) if name == "train" else batches.test():
                assert images.shape == (len(these), 3, 16, 16) and images.dtype == torch.float32
                assert images.mean((2, 3)).argmax(1).equal(these) and these.dtype == torch.int64
                labels[name] += these.tolist()
    assert sorted(labels["train"]) == [0] * 4 + [1] * 4 + [2] * 4 and sorted(labels["test"]) == [0, 0, 1, 1, 2, 2]


def test_batches_depend_on_seed_and_epoch_and_can_start_anywhere(tree):
    for path in (tree / "train").rglob("*.JPEG"):
        pixels = np.random.default_rng(len(str(path))).integers(0, 256, (30, 40, 3), np.uint8)
        Image.fromarray(pixels).save(path)

    def run(seed, epoch, first=0, **options):
        batches = FolderBatches(tree, 2, Share(1, 2), seed, image_size=16, **options)
        return torch.stack([images for images, _ in batches.train(epoch, first)])

    whole = run(1, 0)
    assert run(1, 0, threads=3).equal(whole) and run(1, 0, first=1).equal(whole[1:])
    assert not run(2, 0).equal(whole) and not run(1, 1).equal(whole)
    assert not run(1, 0, augment=False).equal(whole)


@pytest.mark.parametrize(("wanted", "size"), [(None, 224), (32, 32)])
def test_the_data_set_imagenet_is_such_a_tree(tree, wanted, size):
    args = Namespace(
        data_dir=tree, batch_size=3, seed=1, image_size=wanted, augment=True, threads=1, shards="shuffled", spares=0
    )
    (batches,) = World(1).run(lambda comm: DATASETS["imagenet"].batches(args, comm))
    assert (batches.steps, batches.classes, batches.image_size) == (4, 3, size)
    assert next(batches.test())[0].shape == (6, 3, size, size)


def test_an_image_is_normalised_from_any_mode(tmp_path):
    for mode, suffix in (("RGB", "png"), ("L", "png"), ("P", "png"), ("CMYK", "jpg")):
        save(tmp_path / f"{mode}.{suffix}", (128, 128, 128), mode=mode)
        image = read_image(str(tmp_path / f"{mode}.{suffix}"), 8)
        assert np.abs(image * DEVIATION + MEAN - 128 / 255).max() < 0.02


def test_evaluation_sees_the_middle_and_training_mirrors(tmp_path):
    ramp = np.broadcast_to(np.linspace(0, 255, 256).astype(np.uint8)[None, :, None], (256, 256, 3))
    Image.fromarray(np.ascontiguousarray(ramp)).save(tmp_path / "ramp.png")
    path = str(tmp_path / "ramp.png")
    seen = read_image(path, 224) * DEVIATION + MEAN
    assert np.abs(seen[:, 0] - np.arange(16, 240) / 255).max() < 1e-5
    rises = [np.diff(read_image(path, 8, np.random.default_rng(seed))[0, 0]).mean() > 0 for seed in range(200)]
    assert 70 < sum(rises) < 130


def test_the_middle_is_224_of_256_of_the_shorter_side():
    assert middle(512, 256) == (144, 16, 368, 240)


def test_cuts_stay_inside_and_vary_in_area_and_shape():
    rng = np.random.default_rng(0)
    boxes = np.array([cut(500, 375, rng) for _ in range(500)])
    left, top, right, bottom = boxes.T
    assert left.min() >= 0 and top.min() >= 0 and right.max() <= 500 and bottom.max() <= 375
    areas, ratios = (right - left) * (bottom - top) / (500 * 375), (right - left) / (bottom - top)
    assert 0.075 < areas.min() < 0.12 and 0.85 < areas.max() <= 1
    assert 0.74 < ratios.min() < 0.8 and 1.25 < ratios.max() < 1.35
    assert cut(1000, 10, rng) == middle(1000, 10)


def test_the_next_batch_is_read_while_one_is_used():
    reached = {item: threading.Event() for item in range(6)}
    batches = ahead([[0, 1], [2, 3], [4, 5]], lambda item: reached[item].set() or -item, threads=2)
    assert next(batches) == [0, -1]
    assert reached[2].wait(60) and reached[3].wait(60) and not reached[4].is_set()
    assert list(batches) == [[-2, -3], [-4, -5]] and list(ahead([], abs, 1)) == []


def test_leaving_an_epoch_early_leaves_no_thread(tree):
    before = threading.active_count()
    batches = FolderBatches(tree, 2, Share(0, 1), seed=1, image_size=16, threads=2).train(0)
    next(batches)
    assert threading.active_count() > before
    batches.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_an_unreadable_image_is_named(tree, content):
    path = tree / "train" / CLASSES[1] / f"{CLASSES[1]}_2.JPEG"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(ValueError, match=rf"cannot read the image .*{path.name} "):
        list(FolderBatches(tree, 2, Share(0, 1), seed=1, image_size=16).train(0))


def test_a_tree_that_is_none_is_refused_with_the_remedy(tree):
    def refused(error, match):
        with pytest.raises(error, match=match):
            FolderBatches(tree, 2, Share(0, 1), seed=1)

    with pytest.raises(ValueError, match="12 training samples are too few for 7 ranks"):
        FolderBatches(tree, 2, Share(0, 7), seed=1)
    (tree / "val" / CLASSES[0]).rename(tree / "val" / "n0")
    refused(ValueError, f"2 are in one alone: n0, {CLASSES[0]}")
    (tree / "train" / CLASSES[0]).rename(tree / "train" / "n0")
    for path in (tree / "val" / "n0").rglob("*.jpg"):
        path.unlink()
    refused(FileNotFoundError, r"no images \(.jpeg, .jpg, .png\) in the class folder .*n0")
    (tree / "val").rename(tree / "elsewhere")
    refused(FileNotFoundError, "no val in ")
    (tree / "val").mkdir()
    refused(FileNotFoundError, "no class folders in .*sort them into folders")
