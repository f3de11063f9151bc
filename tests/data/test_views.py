"""Views are pure functions of their key; the clean view is the reference pipeline, pixel for pixel."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from rowssl.core.errors import InputError
from rowssl.data.views import ViewRecipe, all_views, clean_view, make_view, view_recipe

KINDS = ["standard", "strong", "small"]


def picture(width: int = 60, height: int = 40, seed: int = 0) -> Image.Image:
    """Smooth colours with noise: no two crops are alike, and hue, saturation and value all vary."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int64)
    return Image.fromarray(np.clip(smooth + rng.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8))


def reference_resize(image: Image.Image, side: int) -> Image.Image:
    """The shorter side to `side`, as torchvision's Resize computes the other one."""
    width, height = image.size
    size = (side, int(side * height / width)) if width <= height else (int(side * width / height), side)
    return image.resize(size, Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (32, 32), (301, 299), (7, 90), (37, 36)])
def test_clean_view_is_resize_then_centre_crop(size: tuple[int, int]) -> None:
    recipe = view_recipe("standard", 28)
    assert recipe.resize == 32
    resized = reference_resize(
        picture(*size) if max(size) <= 8 * min(size) else picture(*size).crop((0, 17, 7, 73)), 32
    )
    left, top = round((resized.width - 28) / 2.0), round((resized.height - 28) / 2.0)
    expected = np.asarray(resized)[top : top + 28, left : left + 28]
    np.testing.assert_array_equal(clean_view(picture(*size), recipe), expected)


def test_standard_view_is_a_crop_of_the_resized_picture_or_its_mirror() -> None:
    recipe = view_recipe("standard", 28)
    resized = np.asarray(reference_resize(picture(), 32))
    mirrored, corners = 0, set()
    for number in range(200):
        view = make_view(picture(), recipe, (3, 1, 5, number))
        found = [
            (flip, top, left)
            for flip in (False, True)
            for top in range(resized.shape[0] - 27)
            for left in range(resized.shape[1] - 27)
            if np.array_equal(resized[top : top + 28, left : left + 28][:, :: -1 if flip else 1], view)
        ]
        assert len(found) == 1
        mirrored += found[0][0]
        corners.add(found[0][1:])
    assert 70 <= mirrored <= 130  # probability 1/2
    assert {top for top, _ in corners} == set(range(5))  # every place is reached, both ends included
    assert {left for _, left in corners} == set(range(21))


def test_small_view_is_a_shift_by_an_eighth_without_flip() -> None:
    recipe = view_recipe("small", 8)
    image = picture(8, 8)
    pixels = np.asarray(image)
    np.testing.assert_array_equal(clean_view(image, recipe), pixels)  # nothing is resized
    padded = np.pad(pixels, ((1, 1), (1, 1), (0, 0)), mode="reflect")
    shifts = {padded[top : top + 8, left : left + 8].tobytes() for top in range(3) for left in range(3)}
    seen = {make_view(image, recipe, (0, 0, 0, number)).tobytes() for number in range(150)}
    assert seen == shifts
    flipped = {make_view(image, view_recipe("small", 8, flip=1.0), (0, 0, 0, n))[:, ::-1].tobytes() for n in range(150)}
    assert flipped == shifts


def test_strong_views_change_place_size_and_colour() -> None:
    image = picture(90, 50)
    plain: dict[str, Any] = {"flip": 0.0, "jitter_probability": 0.0, "grey": 0.0}
    whole = view_recipe("strong", 24, **plain, scale=(1.0, 1.0))
    part = make_view(image, view_recipe("strong", 24, **plain), (0, 0, 0, 0))
    assert not np.array_equal(part, make_view(image, whole, (0, 0, 0, 0)))
    grey = make_view(image, view_recipe("strong", 24, grey=1.0), (0, 0, 0, 0))
    assert (grey == grey[..., :1]).all()
    assert not (part == part[..., :1]).all()
    only_hue = view_recipe("strong", 24, flip=0.0, jitter=(0.0, 0.0, 0.0, 0.4), jitter_probability=1.0, grey=0.0)
    turned, kept = (make_view(image, r, (0, 0, 0, 2)) for r in (only_hue, view_recipe("strong", 24, **plain)))
    assert np.abs(turned.astype(int) - kept).max() > 40
    # A turn of the hue leaves the largest channel of a pixel as it was, up to the rounding of HSV.
    assert np.abs(turned.max(axis=2).astype(int) - kept.max(axis=2)).max() <= 2


@pytest.mark.parametrize("size", [(1, 1), (3, 400), (400, 3), (5, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_odd_shapes_give_whole_views(kind: str, size: tuple[int, int]) -> None:
    recipe = view_recipe(kind, 16)
    for view in (clean_view(picture(*size), recipe), make_view(picture(*size), recipe, (0, 0, 0, 1))):
        assert view.shape == (16, 16, 3)
        assert view.dtype == np.uint8


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    key=st.tuples(*[st.integers(0, 2**40)] * 4),
    size=st.tuples(st.integers(2, 70), st.integers(2, 70)),
    noise=st.integers(0, 2**32 - 1),
)
def test_a_view_depends_on_its_key_alone(
    kind: str, key: tuple[int, int, int, int], size: tuple[int, int], noise: int
) -> None:
    recipe, image = view_recipe(kind, 12), picture(*size)
    before = np.asarray(image).copy()
    first = make_view(image, recipe, key)
    np.random.default_rng(noise).random()
    make_view(image, recipe, (key[0] + 1, *key[1:]))
    np.testing.assert_array_equal(make_view(picture(*size), recipe, key), first)
    np.testing.assert_array_equal(np.asarray(image), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(4))
def test_every_part_of_the_key_matters(kind: str, part: int) -> None:
    recipe = view_recipe(kind, 32)
    keys = [tuple(number if place == part else 1 for place in range(4)) for number in range(6)]
    views = {make_view(picture(), recipe, key).tobytes() for key in keys}  # type: ignore[arg-type]
    assert len(views) >= 5  # two of six may coincide, not more


@pytest.mark.parametrize("kind", KINDS)
def test_all_views_are_the_single_ones(kind: str) -> None:
    recipe, image = view_recipe(kind, 20), picture(70, 30)
    views = all_views(image, recipe, seed=4, index=9, count=3)
    assert views.shape == (4, 20, 20, 3)
    np.testing.assert_array_equal(views[0], clean_view(image, recipe))
    for number in range(3):
        np.testing.assert_array_equal(views[1 + number], make_view(image, recipe, (4, 0, 9, number)))


def test_description_holds_what_matters_and_no_more() -> None:
    standard = view_recipe("standard", 28)
    assert json.loads(json.dumps(standard.describe()))["resize"] == 32
    assert standard.describe() == view_recipe("standard", 28, grey=0.9).describe()  # standard knows no grey
    assert standard.describe() != view_recipe("standard", 28, flip=0.1).describe()
    strong = view_recipe("strong", 28)
    assert strong.describe() != view_recipe("strong", 28, grey=0.9).describe()
    assert strong.describe(clean_only=True) == standard.describe(clean_only=True)
    assert strong.describe(clean_only=True) != view_recipe("strong", 28, 40).describe(clean_only=True)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "weak"}, "weak"),
        ({"crop": "left"}, "left"),
        ({"resize": 20}, "28 px"),
        ({"scale": (0.0, 1.0)}, "scale"),
    ],
)
def test_impossible_recipes_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        ViewRecipe(**{"size": 28, "resize": 32, **options})
