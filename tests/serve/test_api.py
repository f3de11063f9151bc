"""Every endpoint of a served run, on a real one."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from finished import Finished
from rowssl.api import fit
from rowssl.config import build_config
from rowssl.runs.edits import Edits
from rowssl.runs.run import Run
from rowssl.serve.app import create_app
from rowssl.serve.session import Served

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>'


def client_of(run: Path) -> TestClient:
    return TestClient(create_app(Served(run, device="cpu")), base_url="http://127.0.0.1:8000")


@pytest.fixture
def client(own_run: Path) -> Iterator[TestClient]:
    with client_of(own_run) as one:
        yield one


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def predict(client: TestClient, image: Image.Image, name: str = "new.png") -> dict[str, Any]:
    answer = client.post("/predict", files={"image": (name, png(image), "image/png")})
    assert answer.status_code == 200, answer.text
    return answer.json()


def classes(client: TestClient) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in client.get("/classes").json()["classes"]}


def test_the_page_and_its_parts_come_from_this_server_alone(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for part in ("/page.js", "/page.css"):
        assert f'"{part}"' in page.text
        assert client.get(part).status_code == 200
    for text in (page.text, client.get("/page.js").text, client.get("/page.css").text, client.get("/docs").text):
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text


def test_the_api_describes_itself(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    asked = {
        "/predict": "post", "/classes": "get", "/classes/{class_id}": "patch", "/classes/{class_id}/merge": "post",
        "/classes/{class_id}/split": "post", "/move": "post", "/undo": "post", "/classes.csv": "get", "/health": "get",
        "/thumb/{row}": "get",
    }  # fmt: skip
    listed = client.get("/docs").text
    for path, method in asked.items():
        assert method in described[path]
        assert f"<code>{path}</code>" in listed
    content = described["/predict"]["post"]["requestBody"]["content"]
    assert set(content) == {"multipart/form-data"}  # the run is on pictures


def test_health(client: TestClient) -> None:
    assert client.get("/health").json()["status"] == "ok"
    assert client.get("/health").json()["classes"] == 10


def test_predict_says_what_the_model_says(client: TestClient, own_run: Path, finished: Finished) -> None:
    from rowssl.runs.classifier import Classifier

    (said,) = Classifier.load(own_run).predict_images([finished.fresh[0]])
    answer = predict(client, finished.fresh[0])
    assert (answer["id"], answer["name"], answer["kind"]) == (said.class_id, said.name, said.kind)
    assert answer["confidence"] == pytest.approx(said.confidence, abs=1e-5)
    assert answer["second"]["id"] == said.second
    assert answer["far"] is said.far
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert predict(client, Image.fromarray(noise))["far"] is True


def test_predict_lists_the_most_likely_and_says_where_it_abstains(client: TestClient, finished: Finished) -> None:
    picture = png(finished.fresh[0])

    def ask(**asked: Any) -> Any:
        return client.post("/predict", params=asked, files={"image": ("x.png", picture, "image/png")})

    plain = ask().json()
    assert (plain["top"], plain["abstained"]) == ([], False)
    answer = ask(top=3, abstain=1.0).json()
    assert answer["abstained"] is True
    assert answer["id"] == plain["id"]  # a guess
    assert [one["id"] for one in answer["top"]][:2] == [plain["id"], plain["second"]["id"]]
    assert answer["top"][0]["probability"] == pytest.approx(plain["confidence"])
    assert len(ask(top=99).json()["top"]) == 10
    for wrong in ({"top": -1}, {"abstain": 80}, {"top": "many"}):
        assert ask(**wrong).status_code == 422


def test_labelled_images_are_in_their_class(client: TestClient, own_run: Path) -> None:
    for row in csv.DictReader((own_run / "predictions.csv").open()):
        if row["label"] == "a":
            break
    members = client.get("/classes/a", params={"limit": 200}).json()["members"]
    labelled = [one for one in members if one["labelled"]]
    assert row["file"] in {one["file"] for one in labelled}
    assert {one["confidence"] for one in labelled} == {1.0}
    assert len(labelled) == classes(client)["a"]["labelled"]
    free = [one["confidence"] for one in members if not one["labelled"]]
    assert classes(client)["a"]["confidence"] == pytest.approx(float(np.mean(free)), abs=1e-4)


def test_the_nearest_to_a_training_image_is_itself(client: TestClient, finished: Finished) -> None:
    picture = Image.open(finished.pictures / "017.png")
    first, *others = predict(client, picture)["nearest"]
    assert first["file"] == "017.png"
    assert first["cosine"] == pytest.approx(1, abs=2e-3)
    cosines = [one["cosine"] for one in others]
    assert len(others) == 7
    assert cosines == sorted(cosines, reverse=True)


def test_classes_are_those_of_the_table(client: TestClient) -> None:
    overview = client.get("/classes").json()
    table = list(csv.DictReader(io.StringIO(client.get("/classes.csv").text)))
    assert [(one["id"], one["kind"], one["size"], one["labelled"]) for one in overview["classes"]] == [
        (row["class"], row["kind"], int(row["size"]), int(row["labelled"])) for row in table
    ]
    assert overview["rows"] == sum(one["size"] for one in overview["classes"]) == 500
    assert overview["takes_images"]
    assert overview["pictures"]
    assert overview["last_edit"] == ""
    assert "attachment" in client.get("/classes.csv").headers["content-disposition"]


def test_a_class_shows_all_its_images_a_page_at_a_time(client: TestClient) -> None:
    size = classes(client)["a"]["size"]
    files: list[str] = []
    for offset in range(0, size, 7):
        page = client.get("/classes/a", params={"offset": offset, "limit": 7}).json()
        files += [one["file"] for one in page["members"]]
    assert len(set(files)) == len(files) == size
    doubtful = client.get("/classes/a", params={"order": "doubtful", "limit": 200}).json()["members"]
    assert sorted(one["file"] for one in doubtful) == sorted(files)
    confidences = [one["confidence"] for one in doubtful]
    assert confidences == sorted(confidences)
    assert client.get("/classes/a", params={"limit": 201}).status_code == 422
    assert client.get("/classes/a", params={"order": "no"}).status_code == 422


def test_thumbnails(client: TestClient, finished: Finished) -> None:
    answer = client.get("/thumb/17")
    assert answer.headers["content-type"] == "image/jpeg"
    small = np.asarray(Image.open(io.BytesIO(answer.content)).convert("L"), dtype=float)
    real = np.asarray(Image.open(finished.pictures / "017.png").convert("L"), dtype=float)
    assert np.abs(small - real).mean() < 12
    assert client.get("/thumb/500").status_code == 404
    assert client.get("/thumb/-1").status_code == 404
    assert client.get("/thumb/..%2f..%2fetc").status_code in (404, 422)


def test_rename_holds_at_once_and_after_a_restart(client: TestClient, own_run: Path, finished: Finished) -> None:
    one = predict(client, finished.fresh[0])["id"]
    after = client.patch(f"/classes/{one}", json={"name": "Zero"})
    assert after.status_code == 200
    assert after.json()["last_edit"] == f"{one} renamed to Zero"
    assert after.json()["problems"] == []
    assert predict(client, finished.fresh[0])["name"] == "Zero"
    assert client.get("/classes/Zero").json()["id"] == one
    assert "Zero" in client.get("/classes.csv").text
    with client_of(own_run) as again:
        assert classes(again)[one]["name"] == "Zero"
        assert predict(again, finished.fresh[0])["name"] == "Zero"


def test_a_hostile_name_stays_text(client: TestClient, own_run: Path) -> None:
    assert client.patch("/classes/a", json={"name": HOSTILE}).status_code == 200
    overview = client.get("/classes")
    assert overview.headers["content-type"] == "application/json"
    assert classes(client)["a"]["name"] == HOSTILE
    assert HOSTILE not in client.get("/").text
    assert HOSTILE not in client.get("/docs").text
    assert "'unsafe-inline'" not in client.get("/").headers["content-security-policy"]
    assert client.get("/classes/a").json()["name"] == HOSTILE


def test_a_name_may_be_anything_an_address_may_not(client: TestClient) -> None:
    from urllib.parse import quote

    for name in ("x/merge", "50 %/split?", "#1", "été", " .."):
        assert client.patch("/classes/a", json={"name": name}).status_code == 200, name
        found = client.get(f"/classes/{quote(name, safe='')}")
        assert found.status_code == 200, name
        assert found.json()["id"] == "a"
        assert found.json()["name"] == name.strip()


def test_merge_split_move_undo(client: TestClient, finished: Finished) -> None:
    before = classes(client)
    first, second = [one for one in before if before[one]["kind"] == "novel"][:2]
    after = client.post(f"/classes/{first}/merge", json={"others": [second]}).json()
    merged = {one["id"]: one for one in after["classes"]}
    assert second not in merged
    assert merged[first]["size"] == before[first]["size"] + before[second]["size"]
    assert client.get(f"/classes/{second}").json()["id"] == first  # the id of old goes on

    after = client.post(f"/classes/{first}/split", json={"parts": 3}).json()
    parts = [one for one in after["classes"] if one["id"].startswith(f"{first}.")]
    assert len(parts) == 3
    assert sum(one["size"] for one in parts) == merged[first]["size"]

    file = client.get(f"/classes/{parts[0]['id']}").json()["members"][0]["file"]
    client.post("/move", json={"files": [file], "class_id": "a"})
    members = client.get("/classes/a", params={"limit": 200}).json()["members"]
    moved = next(one for one in members if one["file"] == file)
    assert moved["labelled"]
    assert moved["confidence"] == 1
    assert moved["second"]["id"] == parts[0]["id"]

    for _ in range(3):
        assert client.post("/undo").status_code == 200
    assert classes(client) == before
    refused = client.post("/undo")
    assert refused.status_code == 422
    assert refused.json() == {"detail": "There is no edit to undo."}


def test_mistakes_are_one_sentence(client: TestClient) -> None:
    refused = [
        (404, client.get("/classes/nothing")),
        (404, client.patch("/classes/nothing", json={"name": "x"})),
        (404, client.post("/classes/a/merge", json={"others": ["nothing"]})),
        (404, client.post("/move", json={"files": ["017.png"], "class_id": "nothing"})),
        (422, client.post("/move", json={"files": ["nothing.png"], "class_id": "a"})),
        (422, client.post("/classes/a/merge", json={"others": ["a"]})),
        (422, client.post("/classes/a/merge", json={"others": []})),
        (422, client.post("/classes/a/split", json={"parts": 1})),
        (422, client.patch("/classes/a", json={"name": "b"})),
        (422, client.patch("/classes/a", json={"name": "two\nlines"})),
        (422, client.patch("/classes/a", json={"name": "x", "more": 1})),
        (422, client.patch("/classes/a", content=b"no json", headers={"Content-Type": "application/json"})),
        (422, client.post("/predict", json={"embedding": [1.0]})),
        (415, client.post("/predict", data={"image": "no file"})),  # neither multipart nor JSON
    ]
    for status, answer in refused:
        assert answer.status_code == status, (answer.url, answer.text)
        assert list(answer.json()) == ["detail"]
        assert isinstance(answer.json()["detail"], str)
    assert client.get("/classes").json()["last_edit"] == ""


def test_edits_of_another_program_are_noticed(client: TestClient, own_run: Path, finished: Finished) -> None:
    one = predict(client, finished.fresh[0])["id"]
    Run.load(own_run).rename(one, "Elsewhere")
    assert predict(client, finished.fresh[0])["name"] == "Elsewhere"
    assert classes(client)[one]["name"] == "Elsewhere"


def test_the_report_is_written_once_the_server_ends(own_run: Path) -> None:
    with client_of(own_run) as client:
        client.patch("/classes/a", json={"name": "Name of the report"})
        assert "Name of the report" not in (own_run / "report.html").read_text()
        assert Edits.load(own_run).names["a"] == "Name of the report"
    assert "Name of the report" in (own_run / "report.html").read_text()


def test_a_run_whose_pictures_are_gone_still_answers(tmp_path: Path, own_run: Path, finished: Finished) -> None:
    import json

    from rowssl.core.files import read_directory, write_directory

    tensors, facts = read_directory(own_run / "answers")
    facts["paths"] = [path.replace(str(finished.pictures), str(tmp_path / "gone")) for path in facts["paths"]]
    write_directory(own_run / "answers", tensors, json.loads(json.dumps(facts)))
    with client_of(own_run) as client:
        assert "no longer there" in client.get("/classes").json()["problem"]
        assert client.get("/thumb/0").status_code == 404
        assert predict(client, finished.fresh[0])["nearest"]


def test_a_run_on_embeddings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(np.eye(3, 6, dtype=np.float32), 30, axis=0) + rng.normal(0, 0.05, (90, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    content = {"data": {"source": str(tmp_path / "x.npy")}, "method": {"name": "kmeans"}, "classes": 3}
    fit(build_config(content), tmp_path / "run")
    with client_of(tmp_path / "run") as client:
        overview = client.get("/classes").json()
        assert not overview["takes_images"]
        assert overview["embedding_size"] == 6
        answer = client.post("/predict", json={"embedding": x[40].tolist()})
        assert answer.status_code == 200, answer.text
        assert {one["label"]["id"] for one in answer.json()["nearest"]} == {answer.json()["id"]}
        refused = client.post("/predict", files={"image": ("x.png", b"x", "image/png")})
        assert refused.status_code == 422
        assert "embeddings" in refused.json()["detail"]
        assert client.get("/thumb/0").status_code == 404
        assert client.post("/predict", json={"embedding": [1.0] * 5}).status_code == 422
        for wrong in ("NaN", "1e999", "1e300", '"x"'):
            body = f'{{"embedding": [{", ".join([wrong] * 6)}]}}'
            refused = client.post("/predict", content=body, headers={"Content-Type": "application/json"})
            assert refused.status_code == 422, wrong
