"""Views of a picture: the clean one, and augmented ones that are pure functions of (seed, epoch, index, view)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rowssl.core.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Key = tuple[int, int, int, int]  # seed, epoch, index of the row, number of the view

VERSION = 1  # part of every description: raise it when the same recipe would give other pixels
KINDS = ("standard", "strong", "small")
GENTLE: dict[str, Any] = {"scale": (0.35, 1.0), "jitter": (0.2, 0.2, 0.2, 0.02), "grey": 0.0}
LONGEST = 8  # of a strip longer than 8 times its width only the middle counts: resized it might fill the memory
_STREAM = 21  # sets the random numbers of views apart from those of the batches


@dataclass(frozen=True)
class ViewRecipe:
    """How views are made; the clean view is always the shorter side to `resize`, then a centre crop of `size`.

    Attributes
    ----------
    size, resize
        Side of a view, and the shorter side of the (bicubically) resized picture it is cut from, in pixels.
    kind
        `standard`: the paper's, a crop of the resized picture and a flip (its ColorJitter has no arguments: no effect).
        `strong`: a random part of the picture, resized, with a flip, colour jitter and sometimes grey.
        `small`: for pictures of few pixels, a shift by at most `shift` of the side, the edges mirrored.
    crop
        `random` or `centre`, for `standard`.
    flip
        Probability of a mirror image.
    scale
        Least and largest share of the picture's area, for `strong`.
    jitter, jitter_probability, grey
        Brightness, contrast, saturation and hue of `strong`, how often they change, how often colour is dropped.
    shift
        Share of the side, for `small`.
    """

    size: int
    resize: int
    kind: str = "standard"
    crop: str = "random"
    flip: float = 0.5
    scale: tuple[float, float] = (0.25, 1.0)
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_probability: float = 0.8
    grey: float = 0.2
    shift: float = 0.125

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"a view recipe is one of {', '.join(KINDS)}, not {self.kind!r}")
        if self.crop not in ("random", "centre"):
            raise InputError(f"the crop of a view is random or centre, not {self.crop!r}")
        if not 1 <= self.size <= self.resize:
            raise InputError(f"a view of {self.size} px cannot be cut from a picture resized to {self.resize} px")
        if not (0 < self.scale[0] <= self.scale[1] <= 1):
            raise InputError(f"the scale of a view is two shares of the picture in (0, 1], not {self.scale}")

    def describe(self, *, clean_only: bool = False) -> dict[str, Any]:
        """Everything that decides the pixels, for hashing; with `clean_only`, of the clean view alone."""
        used = {
            "standard": ("kind", "crop", "flip"),
            "strong": ("kind", "flip", "scale", "jitter", "jitter_probability", "grey"),
            "small": ("kind", "flip", "shift"),
        }[self.kind]
        facts = asdict(self)
        names = ("size", "resize", *(() if clean_only else used))
        return {"version": VERSION, **{name: facts[name] for name in names}}


def view_recipe(kind: str, size: int, resize: int | None = None, **changes: Any) -> ViewRecipe:
    """The usual recipe of a kind.

    Parameters
    ----------
    kind
        `standard`, `strong`, `small`, or `gentle`: a random part as in `strong`, with colours nearly as they are.
    size
        Side of a view in pixels.
    resize
        Shorter side of the resized picture; by default the paper's int(size / 0.875), and `size` for `small`.
    changes
        Other fields of `ViewRecipe`. `small` does not flip unless asked to: a mirrored digit is no digit.
    """
    if kind == "gentle":
        return ViewRecipe(size, resize or int(size / 0.875), "strong", **{**GENTLE, **changes})
    if kind == "small":
        return ViewRecipe(size, resize or size, kind, **{"flip": 0.0, **changes})
    return ViewRecipe(size, resize or int(size / 0.875), kind, **changes)


def prepare(image: Image, recipe: ViewRecipe) -> Image:
    """The picture with its shorter side at `recipe.resize`: the part that the views of one picture share."""
    from PIL.Image import Resampling

    image = _middle(image)
    width, height = image.size
    short = min(width, height)
    target = (int(recipe.resize * width / short), int(recipe.resize * height / short))
    return image if image.size == target else image.resize(target, Resampling.BICUBIC)


def clean_view(image: Image, recipe: ViewRecipe) -> np.ndarray:
    """The view without chance, uint8 (size, size, 3)."""
    return _centre_crop(prepare(image, recipe), recipe.size)


def make_view(image: Image, recipe: ViewRecipe, key: Key) -> np.ndarray:
    """The augmented view of a picture that `key` = (seed, epoch, index, view) stands for, uint8 (size, size, 3)."""
    return cut_view(image if recipe.kind == "strong" else prepare(image, recipe), recipe, key)


def cut_view(image: Image, recipe: ViewRecipe, key: Key) -> np.ndarray:
    """As `make_view`, from a picture that went through `prepare` already (for `strong`, from the picture itself)."""
    rng = np.random.default_rng([*key, _STREAM])
    view = _CUTS[recipe.kind](image, recipe, rng)
    if rng.random() < recipe.flip:
        view = view[:, ::-1]
    return np.ascontiguousarray(view)


def all_views(image: Image, recipe: ViewRecipe, *, seed: int, index: int, count: int) -> np.ndarray:
    """The clean view, then views 0 .. count - 1 of epoch 0, from one resize: uint8 (1 + count, size, size, 3)."""
    resized = prepare(image, recipe)
    source = image if recipe.kind == "strong" else resized
    views = [_centre_crop(resized, recipe.size)]
    views += [cut_view(source, recipe, (seed, 0, index, view)) for view in range(count)]
    return np.stack(views)


def _middle(image: Image) -> Image:
    """The picture, or the middle of a very long one."""
    width, height = image.size
    longest = LONGEST * min(width, height)
    if max(width, height) <= longest:
        return image
    left, top = max(0, (width - longest) // 2), max(0, (height - longest) // 2)
    return image.crop((left, top, left + min(width, longest), top + min(height, longest)))


def _centre_crop(image: Image, size: int) -> np.ndarray:
    """(size, size, 3) from the middle; half a pixel is rounded to the even side, as torchvision does."""
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.array(image.crop((left, top, left + size, top + size)))


def _cut_standard(image: Image, recipe: ViewRecipe, rng: np.random.Generator) -> np.ndarray:
    """(size, size, 3) from anywhere in the resized picture."""
    if recipe.crop == "centre":
        return _centre_crop(image, recipe.size)
    top, left = (int(rng.integers(side - recipe.size + 1)) for side in (image.height, image.width))
    return np.array(image.crop((left, top, left + recipe.size, top + recipe.size)))


def _cut_small(image: Image, recipe: ViewRecipe, rng: np.random.Generator) -> np.ndarray:
    """(size, size, 3), the clean view shifted; what comes into sight mirrors what is there."""
    pixels = _centre_crop(image, recipe.size)
    most = min(int(recipe.size * recipe.shift), recipe.size - 1)
    padded = np.pad(pixels, ((most, most), (most, most), (0, 0)), mode="reflect")
    top, left = rng.integers(2 * most + 1, size=2)
    return padded[top : top + recipe.size, left : left + recipe.size]


def _cut_strong(image: Image, recipe: ViewRecipe, rng: np.random.Generator) -> np.ndarray:
    """(size, size, 3), a random part of the picture in random colours."""
    from PIL.Image import Resampling

    left, top, width, height = _random_box(image.width, image.height, recipe.scale, rng)
    box = (left, top, left + width, top + height)
    view = image.resize((recipe.size, recipe.size), Resampling.BICUBIC, box=box, reducing_gap=3.0)
    if rng.random() < recipe.jitter_probability:
        view = _jitter(view, recipe.jitter, rng)
    if rng.random() < recipe.grey:
        view = view.convert("L").convert("RGB")
    return np.array(view)


_CUTS: dict[str, Callable[[Image, ViewRecipe, np.random.Generator], np.ndarray]] = {
    "standard": _cut_standard,
    "strong": _cut_strong,
    "small": _cut_small,
}


def _random_box(
    width: int, height: int, scale: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, width and height of a part with a random area and an aspect between 3/4 and 4/3."""
    area = rng.uniform(*scale, size=10) * width * height
    aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), size=10))
    sides = np.rint(np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], axis=1)).astype(np.int64)
    fits = ((sides >= 1) & (sides <= (width, height))).all(axis=1)
    if fits.any():
        w, h = (int(side) for side in sides[np.argmax(fits)])
    else:  # a long strip: the largest part of a permitted aspect
        w, h = min(width, max(1, round(height * 4 / 3))), min(height, max(1, round(width * 4 / 3)))
    return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h


def _jitter(image: Image, strength: tuple[float, float, float, float], rng: np.random.Generator) -> Image:
    """Brightness, contrast, saturation and hue changed by random factors in random order."""
    from PIL import ImageEnhance
    from PIL.Image import fromarray, merge

    factors = [rng.uniform(max(0.0, 1 - s), 1 + s) for s in strength[:3]]
    turn = rng.uniform(-strength[3], strength[3])
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for part in rng.permutation(4):
        if part < 3:
            image = enhancers[part](image).enhance(factors[part])
        elif strength[3]:
            hue, saturation, value = image.convert("HSV").split()
            turned = np.array(hue) + np.uint8(round(turn * 255) % 256)  # hue is a circle of 256 steps: it wraps around
            image = merge("HSV", (fromarray(turned), saturation, value)).convert("RGB")
    return image
