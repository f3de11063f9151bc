"""Every table and figure end to end on small folders in the right layouts, through their own loaders and methods."""

from __future__ import annotations

import csv
import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from command import rowssl
from paper.small_data import make_all
from rowssl.bench.results import COLUMNS
from rowssl.paper.catalogue import ITEMS
from rowssl.paper.plan import Settings, planned
from rowssl.paper.verdicts import COMPARED
from rowssl.training.log import CHECK, checksum

QUICK = ("--scale", "small", "--encoder", "pixels", "--image-size", 8, "--epochs", 2, "--workers", 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, and `out` that all tests share: a cell that two tables need is run once."""
    root = tmp_path_factory.mktemp("reproduce")
    make_all(root / "data")
    return root


def reproduce(place: Path, *arguments: object) -> int:
    """The command in this process; its exit code."""
    return rowssl("reproduce", *QUICK, "--data-root", place / "data", "--out", place / "out", *arguments)


def settings(place: Path) -> Settings:
    return Settings(
        place / "out",
        seeds=(0,),
        scale="small",
        data_root=str(place / "data"),
        encoder="pixels",
        image_size=8,
        epochs=2,
    )


def without_hashes(folder: Path) -> bytes:
    """Have the `cell.json` of a run be as earlier versions wrote it; what it was."""
    path = folder / "cell.json"
    before = path.read_bytes()
    path.write_text(json.dumps({key: v for key, v in json.loads(before).items() if key not in ("sha256", "self")}))
    return before


def content(path: Path) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        return tuple(reader.fieldnames or ()), list(reader)


@pytest.mark.parametrize("name", ITEMS)
def test_it_runs_and_writes_ours_the_papers_and_the_difference(place: Path, name: str, capsys) -> None:
    item = ITEMS[name]
    assert reproduce(place, name) == 0
    folder = place / "out" / name
    pictures = sorted(folder.glob("*.svg"))
    assert pictures
    page = (folder / "results.md").read_text(encoding="utf-8")
    for picture in pictures:
        ElementTree.fromstring(picture.read_text(encoding="utf-8"))
        assert f"]({picture.name})" in page
    assert "Missing" not in page
    if item.kind == "profiles":
        assert len(pictures) == len(item.blocks)
        return
    names, rows = content(folder / "results.csv")
    assert names == COLUMNS
    expected = {(block.data.prior, line.method, line.variant) for block in item.blocks for line in block.lines}
    assert len({(row["prior"], row["config"]) for row in rows}) == len(expected)  # every line is a run of its own
    assert {row["table"] for row in rows} == {name}
    assert all(row["dataset"].endswith(" (small)") for row in rows)
    names, compared = content(folder / "comparison.csv")
    assert names == COMPARED
    stated = [row for row in compared if row["paper"]]
    assert bool(stated) == (name not in ("tail_discovery", "tsne", "components_cub"))
    for row in stated:
        assert float(row["ours"]) - float(row["paper"]) == pytest.approx(float(row["difference"]), abs=1e-3)
    claims = (folder / "claims.md").read_text(encoding="utf-8")
    assert claims.count("\n- ") == len(item.claims) > 0
    # In so small a subset equal class sizes may leave nobody in Few.
    empty = [line for line in claims.splitlines() if "no numbers" in line]
    assert all("Few" in line for line in empty)
    assert claims.count(": one seed, ") == len(item.claims) - len(empty)
    latex = (folder / "results.tex").read_text(encoding="utf-8")
    assert latex.count("{") == latex.count("}")
    assert ("Ours minus the paper's" in latex) == bool(stated)
    said = capsys.readouterr().out
    assert all(claim.says in " ".join(said.split()) for claim in item.claims)


def test_the_papers_whole_tables_stand_beside_ours(place: Path) -> None:
    """Every number of the paper's table has one of ours, unless a class group is empty in so small a subset."""
    from rowssl.bench.published import paper_rows

    for name in ("main", "evaluation_strategies", "ablation_temperature", "unknown_classes", "prototypes", "herb_mnar"):
        assert reproduce(place, name) == 0  # finished already if the whole file runs
        _, compared = content(place / "out" / name / "comparison.csv")
        ours = {(r["prior"], r["variant"], r["method"], r["metric"], r["group"]): r["paper"] for r in compared}
        for row in paper_rows():
            key = (row["prior"], row["variant"], row["method"], row["metric"], row["group"])
            if row["table"] == name and row["group"][1:] not in ("Many", "Med", "Few"):
                assert float(ours[key]) == float(row["value"]), key


def test_a_finished_cell_is_never_run_twice(place: Path, capsys) -> None:
    assert reproduce(place, "main", "cifar_mcar") == 0
    runs = place / "out" / "runs"
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert reproduce(place, "cifar_mcar", "cifar_mnar", "main", "tsne") == 0
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()} == before
    assert "to run" not in capsys.readouterr().err
    index = (place / "out" / "reproduce.md").read_text(encoding="utf-8")
    assert all(index.count(f"| [{name}]") == 1 for name in ("main", "cifar_mcar", "cifar_mnar", "tsne"))
    assert not (place / "out" / "tsne" / "runs").exists()


def test_a_dry_run_names_what_is_damaged(place: Path, capsys) -> None:
    assert reproduce(place, "tsne") == 0
    plan = planned(ITEMS["tsne"], settings(place), estimate=False)[0]
    folder = plan.like.folder(place / "out" / "runs")
    kept = (folder / "metrics.json").read_bytes()
    (folder / "metrics.json").write_bytes(kept.replace(b"{", b"[", 1))
    capsys.readouterr()
    assert reproduce(place, "tsne", "--dry-run") == 0
    said = " ".join(capsys.readouterr().out.split())
    (folder / "metrics.json").write_bytes(kept)
    assert "metrics.json is" in said  # a narrow table may break the line
    assert reproduce(place, "tsne", "--dry-run") == 0
    assert "metrics.json" not in capsys.readouterr().out


def test_a_cell_without_features_is_run_again_elsewhere(place: Path) -> None:
    assert reproduce(place, "tsne") == 0
    plans = planned(ITEMS["tsne"], settings(place), estimate=False)
    (folder,) = (plan.like.folder(place / "out" / "runs") for plan in plans if plan.line.method == "gcd")
    kept, facts = place / "kept", without_hashes(folder)
    shutil.move(folder / "sample", kept)
    try:
        assert reproduce(place, "tsne") == 0
        again = list((place / "out" / "tsne" / "runs").glob("*/cell.json"))
        assert [path.parent.name for path in again] == [folder.name]
        names = ("seconds", "peak_memory_mb")
        one, two = (json.loads((where / "metrics.json").read_text()) for where in (folder, again[0].parent))
        assert {k: v for k, v in one.items() if k not in names} == {k: v for k, v in two.items() if k not in names}
    finally:
        shutil.move(kept, folder / "sample")
        (folder / "cell.json").write_bytes(facts)
        shutil.rmtree(place / "out" / "tsne" / "runs", ignore_errors=True)


def test_a_cell_that_measured_too_rarely_is_run_again_elsewhere(place: Path) -> None:
    """The run of `main` measures phi every tenth epoch, the figure shows more; both have one name."""
    assert reproduce(place, "tail_discovery") == 0
    (folder,) = (
        plan.like.folder(place / "out" / "runs")
        for plan in planned(ITEMS["tail_discovery"], settings(place), estimate=False)
        if plan.line.variant == "score=prototype"
    )
    path, runs = folder / "metrics.jsonl", place / "out" / "tail_discovery" / "runs"
    lines = path.read_text().splitlines()
    first = {key: value for key, value in json.loads(lines[0]).items() if key not in ("phi", CHECK)}
    facts = without_hashes(folder)
    try:
        path.write_text("\n".join([json.dumps({**first, CHECK: checksum(first)}), *lines[1:], ""]))
        assert reproduce(place, "tail_discovery") == 0
        assert [one.parent.name for one in runs.glob("*/cell.json")] == [folder.name]
        _, rows = content(place / "out" / "tail_discovery" / "results.csv")
        measured = {(row["variant"], row["metric"]) for row in rows}
        assert {f"phi, epoch {epoch}" for epoch in (1, 2)} <= {
            metric for name, metric in measured if name == "score=prototype"
        }
    finally:
        path.write_text("\n".join([*lines, ""]))
        (folder / "cell.json").write_bytes(facts)
        shutil.rmtree(runs, ignore_errors=True)


def test_list_and_dry_run_say_what_there_is_and_what_is_missing(place: Path, capsys) -> None:
    assert reproduce(place, "--list") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ITEMS)
    assert "missing" not in text
    assert reproduce(place, "main", "--dry-run", "--seeds", "0,1") == 0
    assert "36 cells" in capsys.readouterr().out
    assert reproduce(place, "--list", "--data-root", place / "nowhere") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "nowhere is not a folder" in text
    assert "0/18" in text


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("magic",), "magic"),
        ((), "--list"),
        (("main", "--scale", "tiny"), "--scale"),
        (("main", "--preset", "best"), "--preset"),
        (("main", "--seeds", "a"), "--seeds"),
        (("main", "--data-root", "nowhere"), "nowhere"),
        (("all", "--data-root", "nowhere"), "no data"),
    ],
)
def test_mistakes_are_one_sentence(place: Path, capsys, arguments: tuple[str, ...], word: str) -> None:
    assert reproduce(place, *arguments) == 2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert word in err
    assert "Traceback" not in err


def test_all_goes_on_without_data_that_are_missing(place: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cub200").symlink_to(place / "data" / "cub200")
    assert reproduce(place, "all", "--data-root", tmp_path / "data", "--out", tmp_path / "new", "--dry-run") == 0
    captured = capsys.readouterr()
    assert "left out: main" in captured.err
    assert "5 cells" in captured.out
