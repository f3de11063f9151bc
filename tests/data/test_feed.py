"""A batch is a pure function of (seed, step); half of it is labelled; its two views are two different ones."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rowssl.data.feed import ArraySource, Batch, FeatureAugmentation, Feed

ROWS, VIEWS, DIM = 60, 4, 6


def source(rows: int = ROWS, views: int | None = VIEWS) -> ArraySource:
    """Every number says which row and which view it is from: row + view / 10, the clean view being 0.9."""
    clean = np.repeat(np.arange(rows, dtype=np.float32)[:, None], DIM, axis=1) + 0.9
    if views is None:
        return ArraySource(clean)
    return ArraySource(clean, np.stack([clean - 0.9 + view / 10 for view in range(views)]).astype(np.float32))


def targets(rows: int = ROWS, labelled: int = 12) -> np.ndarray:
    """The first rows are labelled."""
    return np.where(np.arange(rows) < labelled, np.arange(rows) % 3, -1)


def feed(**more: Any) -> Feed:
    options: dict[str, Any] = {"batch_size": 16, "epochs": 3, "seed": 4, **more}
    return Feed(options.pop("source", source()), options.pop("targets", targets()), **options)


def same(one: Batch, two: Batch) -> bool:
    tensors = zip((*one.views, one.target, one.index), (*two.views, two.target, two.index), strict=True)
    facts = [(b.step, b.epoch, b.epochs, b.last_of_epoch) for b in (one, two)]
    return all(torch.equal(a, b) for a, b in tensors) and facts[0] == facts[1]


AUGMENTATIONS = [
    None,
    FeatureAugmentation(mix=0.5),
    FeatureAugmentation(dropout=0.3),
    FeatureAugmentation(noise=0.2),
    FeatureAugmentation(mix=0.5, dropout=0.3, noise=0.2),
]


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
def test_a_batch_depends_on_seed_and_step_alone(augmentation: FeatureAugmentation | None) -> None:
    one = feed(augmentation=augmentation)
    forward = [one.batch(step) for step in range(one.steps)]
    torch.rand(7)  # what others draw from the global state changes nothing
    other = feed(augmentation=augmentation)
    for step in reversed(range(one.steps)):
        assert same(forward[step], other.batch(step))
    assert not same(forward[0], forward[1])
    assert not same(forward[0], feed(augmentation=augmentation, seed=5).batch(0))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 10**6))
def test_any_step_of_any_seed_can_be_asked_for(seed: int, step: int) -> None:
    batch = feed(seed=seed, augmentation=AUGMENTATIONS[-1]).batch(step)
    assert batch.index.shape == (16,)
    assert ((batch.index >= 0) & (batch.index < ROWS)).all()
    assert all(torch.isfinite(view).all() for view in batch.views)


def test_reading_a_batch_does_not_touch_the_global_random_state() -> None:
    before = torch.get_rng_state()
    feed(augmentation=AUGMENTATIONS[-1]).batch(1)
    assert torch.equal(before, torch.get_rng_state())


def test_every_slot_is_labelled_with_probability_one_half() -> None:
    few = feed(targets=targets(labelled=5), batch_size=50)  # 5 of 60 rows are labelled
    rows = np.concatenate([few.draw(step) for step in range(400)])
    labelled = rows < 5
    assert abs(labelled.mean() - 0.5) < 4 * np.sqrt(0.25 / len(rows))
    # Within each half all rows are alike, and slots are independent of their place in the batch.
    for half, size in ((rows[labelled], 5), (rows[~labelled], 55)):
        expected = len(half) / size
        counts = np.array(list(Counter(half.tolist()).values()))
        assert len(counts) == size
        assert (abs(counts - expected) < 5 * np.sqrt(expected)).all()
    by_place = labelled.reshape(400, 50).mean(0)
    assert (abs(by_place - 0.5) < 5 * np.sqrt(0.25 / 400)).all()


@pytest.mark.parametrize("labelled", [0, ROWS])
def test_without_labelled_or_without_unlabelled_rows_all_rows_are_drawn(labelled: int) -> None:
    one = feed(targets=targets(labelled=labelled))
    rows = np.concatenate([one.draw(step) for step in range(200)])
    assert set(rows.tolist()) == set(range(ROWS))
    assert ((one.batch(0).target >= 0) == (labelled > 0)).all()


def test_targets_and_index_belong_together() -> None:
    batch = feed().batch(2)
    assert torch.equal(batch.target, torch.from_numpy(targets())[batch.index])


def read(view: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Row and view numbers of unaugmented trunk outputs."""
    numbers = view[:, 0].numpy()
    rows = np.floor(numbers + 0.05)
    return rows.astype(int), np.round(10 * (numbers - rows)).astype(int)


@pytest.mark.parametrize("views", [2, 3, 4])
def test_the_two_views_of_a_row_are_two_different_cached_views(views: int) -> None:
    one, pairs, patterns = feed(source=source(views=views)), Counter[tuple[int, int]](), set()
    for step in range(60):
        batch = one.batch(step)
        (row0, view0), (row1, view1) = (read(view) for view in batch.views)
        assert (row0 == batch.index.numpy()).all()
        assert (row1 == batch.index.numpy()).all()
        assert (view0 != view1).all()
        pairs.update(zip(view0.tolist(), view1.tolist(), strict=True))
        patterns.add((*view0.tolist(), *view1.tolist()))
    assert len(patterns) == 60  # drawn anew at every step
    assert set(pairs) == {(a, b) for a in range(views) for b in range(views) if a != b}
    expected = 60 * 16 / len(pairs)
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in pairs.values())


def test_one_view_is_used_twice_and_none_means_the_clean_one() -> None:
    batch = feed(source=source(views=1)).batch(0)
    assert (read(batch.views[0])[1] == 0).all()
    assert torch.equal(*batch.views)
    batch = feed(source=source(views=None)).batch(0)
    assert (read(batch.views[0])[1] == 9).all()


def test_augmentation_makes_two_views_of_one() -> None:
    for augmentation in (FeatureAugmentation(noise=0.1), FeatureAugmentation(dropout=0.3)):
        batch = feed(source=source(views=None), augmentation=augmentation).batch(0)
        assert not torch.equal(*batch.views)


def test_mixing_stays_between_views_of_the_row() -> None:
    mixed, plain = feed(augmentation=FeatureAugmentation(mix=0.4)), feed()
    changed = 0
    for step in range(10):
        batch = mixed.batch(step)
        for view, before in zip(batch.views, plain.batch(step).views, strict=True):
            within = view - batch.index[:, None]
            assert ((within >= -1e-4) & (within <= 0.3 + 1e-4)).all()
            assert ((view - before).abs() <= 0.4 * 0.3 + 1e-4).all()  # views of a row are at most 0.3 apart
            changed += int((view != before).any(1).sum())
    assert changed > 100


def test_of_two_views_each_is_asked_for_once_and_mixed_with_the_other() -> None:
    two, asked = source(views=2), []
    view = two.view
    two.view = lambda rows, which, epoch: (asked.append(which), view(rows, which, epoch))[1]  # type: ignore[method-assign]
    batch = feed(source=two, augmentation=FeatureAugmentation(mix=1.0)).batch(0)
    assert len(asked) == 2
    assert (asked[0] + asked[1] == 1).all()
    for number in (0, 1):  # 0 is row, 1 is row + 0.1; in between is what is mixed
        within = (batch.views[number] - batch.index[:, None])[:, 0]
        assert ((within > -1e-4) & (within < 0.1 + 1e-4)).all()
        assert len(within.unique()) > 8


def test_dropout_keeps_the_mean_and_noise_has_the_length_asked_for() -> None:
    big = ArraySource(np.ones((ROWS, 4000), dtype=np.float32))
    dropped = feed(source=big, augmentation=FeatureAugmentation(dropout=0.25)).batch(0).views[0]
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    np.testing.assert_allclose(dropped.mean(1), np.ones(16), atol=0.05)
    noise = feed(source=big, augmentation=FeatureAugmentation(noise=0.5)).batch(0).views[0] - 1
    np.testing.assert_allclose(noise.norm(dim=1), np.full(16, 0.5 * 4000**0.5), rtol=0.1)


def test_epochs_and_steps() -> None:
    one = feed()
    assert one.steps_per_epoch == 3  # 60 // 16, as drop_last
    assert one.steps == 9
    assert [one.batch(s).epoch for s in range(9)] == [0] * 3 + [1] * 3 + [2] * 3
    assert [one.batch(s).last_of_epoch for s in range(9)] == [False, False, True] * 3


@pytest.mark.parametrize("rows", [1, 2, 15])
def test_fewer_rows_than_a_batch(rows: int) -> None:
    one = feed(source=source(rows), targets=targets(rows, labelled=1))
    assert one.steps_per_epoch >= 1
    assert len(one.batch(0).index) == one.batch_size <= max(2, rows)


def test_chunks_cover_all_rows_in_order() -> None:
    one = feed()
    rows, values = zip(*one.chunks(size=7), strict=True)
    assert np.concatenate(rows).tolist() == list(range(ROWS))
    assert (read(torch.cat(values))[1] == 9).all()
    chosen = np.array([5, 3, 59])
    (part,) = list(one.chunks(chosen))
    assert part[1][:, 0].tolist() == pytest.approx([5.9, 3.9, 59.9])
    for number, expected in ((1, 1), (VIEWS + 2, 2)):
        values = [value for _, value in one.view_chunks(number, size=11)]
        assert read(torch.cat(values))[0].tolist() == list(range(ROWS))
        assert (read(torch.cat(values))[1] == expected).all()


def test_half_precision_memory_maps_come_out_as_single_precision(tmp_path: Any) -> None:
    path = tmp_path / "views.npy"
    np.save(path, np.random.default_rng(0).normal(size=(VIEWS, ROWS, DIM)).astype(np.float16))
    mapped = np.load(path, mmap_mode="r")
    batch = feed(source=ArraySource(np.zeros((ROWS, DIM), dtype=np.float16), mapped)).batch(0)
    assert {view.dtype for view in batch.views} == {torch.float32}
    stored = torch.from_numpy(np.array(mapped[:, batch.index.numpy()], dtype=np.float32))  # (V, B, d)
    assert all((stored == view).all(-1).any(0).all() for view in batch.views)


def test_what_was_read_for_chunks_is_let_go_at_their_end() -> None:
    class Counting(ArraySource):
        released = 0

        def release(self) -> None:
            self.released += 1

    asked = Counting(np.zeros((5, 2), dtype=np.float32))
    feed = Feed(asked, np.full(5, -1), batch_size=2, epochs=1, seed=0)
    assert sum(len(rows) for rows, _ in feed.chunks(size=2)) == 5
    assert asked.released == 1
    list(feed.view_chunks(0, size=2))
    assert asked.released == 2


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_both_views_one_after_the_other_are_a_copy_only_where_they_must_be(noise: float) -> None:
    batch = feed(augmentation=FeatureAugmentation(noise=noise)).batch(3)
    both = batch.both_views
    assert torch.equal(both, torch.cat(batch.views))
    assert (both.data_ptr() == batch.views[0].data_ptr()) == (noise == 0.0)
    first, second = batch.views
    turned = dataclasses.replace(batch, views=(second, first))
    assert torch.equal(turned.both_views, torch.cat([second, first]))
