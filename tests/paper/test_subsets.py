"""Small subsets, splits that are made here, pictures, samples of features, and tailedness by each score."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch

from rowssl.bench.cell import CLASSES, ROWS, sample_rows
from rowssl.bench.engine import Failure
from rowssl.core.errors import InputError
from rowssl.data.class_lists import BACON_IMAGENET100_SIZES, BACON_IMAGENET100_SYNSETS
from rowssl.data.feed import ArraySource, Feed
from rowssl.data.table import Table
from rowssl.encoders.tails import AdapterTail
from rowssl.methods import build_method
from rowssl.methods.density import neighbour_density
from rowssl.paper import spec
from rowssl.paper.catalogue import ITEMS
from rowssl.paper.plan import Settings, choose, planned
from rowssl.paper.run import write_item
from rowssl.paper.splits import imagenet_mismatch, small_split
from rowssl.report.charts import Cloud, Curve, lines, scatter, ticks
from rowssl.training.loop import Optimisation, train

SVG = "{http://www.w3.org/2000/svg}"


def table(classes: int, images: int, names: tuple[str, ...] | None = None) -> Table:
    labels = np.tile(np.arange(classes), images)
    return Table(labels, names or tuple(f"c{i}" for i in range(classes)), tuple(map(str, range(len(labels)))),
                 embeddings=np.zeros((len(labels), 2), dtype=np.float32))  # fmt: skip


@pytest.mark.parametrize(
    ("data", "known"),
    [(spec.MATCH, 10), (spec.MISMATCH, 10), (spec.SPLIT_1, 16), (spec.BALANCED, 10)],
)
def test_small_subsets(data, known) -> None:
    train_table, test_table = table(100, 60), table(100, 30)
    split = small_split(data, train_table, test_table)
    assert (len(split.known_classes), len(split.novel_classes)) == (known, 20 - known)
    counts = split.counts(train_table.labels, test_table.labels)["classes"]
    labelled = [c["labelled"] for c in counts[:known]]
    unlabelled = [c["unlabelled"] for c in counts[:known]]
    assert all(c["labelled"] == 0 < c["unlabelled"] <= 40 for c in counts[known:])
    assert all(c["test"] == 20 for c in counts)
    assert labelled == sorted(labelled, reverse=True)
    assert unlabelled == sorted(unlabelled, reverse=data.prior == "match")
    assert (max(labelled), min(labelled)) == ((20, 20) if data.gamma == "1" else (20, 1))
    assert small_split(data, train_table, test_table).sha256() == split.sha256()


def test_a_table_that_is_too_small_is_refused() -> None:
    with pytest.raises(InputError, match="needs 4 images"):
        small_split(spec.MATCH, table(100, 3), table(100, 3))


def test_mismatched_imagenet_has_bacons_sizes_and_reversed_unlabelled_ones() -> None:
    train_table, test_table = table(100, 1290, BACON_IMAGENET100_SYNSETS), table(100, 2, BACON_IMAGENET100_SYNSETS)
    split = imagenet_mismatch(train_table, test_table)
    assert (len(split.labelled), len(split.unlabelled), len(split.test)) == (3166, 3146 + 5893, 200)
    counts = split.counts(train_table.labels)["classes"]
    sizes = np.array(BACON_IMAGENET100_SIZES)
    labelled, unlabelled = (np.array([c[word] for c in counts]) for word in ("labelled", "unlabelled"))
    assert (labelled[:50] == sizes[:50] - sizes[:50] // 2).all()
    assert (unlabelled[50:] == sizes[50:]).all()
    order = np.argsort(-labelled[:50], kind="stable")
    assert (np.diff(unlabelled[:50][order]) >= 0).all()
    assert sorted(unlabelled[:50]) == sorted(sizes[:50] // 2)


def test_cells_are_those_of_bench_and_shared_between_names() -> None:
    settings = Settings(Path("out"), seeds=(0,), data_root="data", encoder="pixels", epochs=3)
    plans = {name: planned(item, settings, estimate=False)
             for name, item in ITEMS.items() if name not in ("in100_mnar", "class_prior_profiles")}  # fmt: skip
    cells = {name: {plan.like.name for plan in found} for name, found in plans.items()}
    assert len(cells["main"]) == 18
    assert cells["cifar_mcar"] | cells["cifar_mnar"] == cells["main"]
    assert cells["tsne"] < cells["main"]
    for name, more in (
        ("evaluation_strategies", 6),
        ("prototypes", 3),
        ("curve_k", 4),
        ("tail_discovery", 2),
        ("components", 3),
    ):
        assert len(cells[name] - cells["main"]) == more
    assert len(cells["components"] - cells["ablation_temperature"] - cells["main"]) == 2
    pending = [plan for plan in plans["unknown_classes"] if plan.cell is None]
    assert {plan.line.method for plan in pending} == {"gcd", "bacon"}
    doubled = [plan.cell.config for plan in plans["unknown_classes"] if plan.line.classes == "double" and plan.cell]
    assert {config.classes for config in doubled} == {200}
    assert {config.method.options["n_prototypes"] for config in doubled if config.method.name == "dts"} == {100}


@pytest.mark.parametrize(
    "name", ["main", "evaluation_strategies", "unknown_classes", "curve_k", "tail_discovery", "tsne"]
)
def test_what_did_not_run_is_said(name: str, tmp_path: Path) -> None:
    settings = Settings(tmp_path, seeds=(0, 1), data_root="data", encoder="pixels", epochs=3)
    plans = planned(ITEMS[name], settings, estimate=False)
    failed = next(plan.cell for plan in plans if plan.cell is not None)
    made = write_item(ITEMS[name], plans, [], settings, [Failure(failed, tmp_path, "killed by SIGKILL")])
    page = (tmp_path / name / "results.md").read_text(encoding="utf-8")
    assert f"{failed.name}: killed by SIGKILL" in page
    assert page.count("not run yet") == len(plans) - 1 == len(made.missing) - 1
    assert {verdict.state for verdict in made.verdicts} == {"no numbers"}
    assert (tmp_path / name / "results.csv").read_text().count("\n") == 1  # the heading alone


def test_choose() -> None:
    assert [item.name for item in choose(["tsne", "main", "tsne"], ITEMS)] == ["tsne", "main"]
    assert len(choose(["all"], ITEMS)) == len(ITEMS) == 23
    with pytest.raises(InputError, match="'magic'"):
        choose(["main", "magic"], ITEMS)


def test_lines_with_spread_marks_and_escaped_names() -> None:
    curve = Curve("a<b", (5, 10, 15), (30.0, 32.0, 31.0), (1.0, None, 2.0))
    picture = lines("t & u", [curve], across="K", up="percent", even=True, marked=10, level=(29.0, "chance"))
    tree = ElementTree.fromstring(picture)
    assert len(list(tree.iter(f"{SVG}circle"))) == 3
    assert "a<b, 5: 30.00 ± 1.00" in [title.text for title in tree.iter(f"{SVG}title")]
    assert 'stroke-dasharray="2 4"' in picture
    heights = [float(dot.get("cy", 0)) for dot in tree.iter(f"{SVG}circle")]
    assert heights[1] < heights[2] < heights[0]  # higher numbers stand higher
    assert lines("t", [], across="x", up="y") == ""
    assert ticks(0.3, 1.9) == [0.5, 1.0, 1.5]
    assert lines("one", [Curve("a", (1,), (2.0,))], across="x", up="y")


def test_clouds_hold_every_point() -> None:
    points = np.random.default_rng(0).normal(size=(12, 2))
    picture = scatter("t", [("test", [Cloud("DTS", points, np.arange(12) % 4, 2)]), ("none", [])])
    assert picture.count("h0") == 12
    ElementTree.fromstring(picture)
    assert scatter("t", [("none", [])]) == ""


def test_code_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).resolve().parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    space: dict[str, list] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), space)
    assert len(space["cells"]) == 5
    assert all(f"`{name}`" in page for name in ITEMS)


def test_sampled_rows_are_of_evenly_spread_classes() -> None:
    truth = np.repeat(np.arange(60), 50)
    rows = sample_rows(truth, 40, 60)
    classes, sizes = np.unique(truth[rows], return_counts=True)
    assert (len(classes), (classes < 40).sum(), sizes.max()) == (2 * CLASSES, CLASSES, ROWS)
    assert {0, 39, 40, 59} <= set(classes.tolist())
    assert len(sample_rows(truth[truth < 3], 3, 3)) == 3 * ROWS  # nothing novel


@pytest.mark.parametrize("score", ["prototype", "instance", "loss"])
def test_tailedness_of_training_rows_is_by_the_score_that_is_asked_for(score: str) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(60, 8)).astype(np.float32)
    target = np.where(np.arange(60) < 20, np.arange(60) % 3, -1)
    feed = Feed(ArraySource(data), target, batch_size=16, epochs=2, seed=0)
    options = {"score": score, "n_neighbours": 3}
    method = build_method("dts", AdapterTail(8, seed=0), options, n_old=3, n_classes=5, n_rows=60, seed=0)
    for _ in train(method, feed, Optimisation()):
        pass
    method.eval()
    found = method.training_tailedness(feed)
    with torch.no_grad():
        b, keys = method.key(torch.from_numpy(data)), method.queue.valid()[0]
        if score == "loss":
            seen = method.loss_memory.seen
            expected = torch.where(seen, -method.loss_memory.mean, -method.loss_memory.mean[seen].mean())
        elif score == "instance":
            expected = neighbour_density(b @ keys.T, 3)
        else:
            nearest = (b @ method.prototypes.T).argmax(1)
            expected = neighbour_density(method.prototypes @ keys.T, 3)[nearest]
    torch.testing.assert_close(found, expected)
    assert len(found.unique()) > (5 if score != "prototype" else 1)
