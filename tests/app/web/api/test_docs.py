"""The examples of docs/api.md, run in their order against a server and a worker."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.projects import ProjectSettings, get_project, update_project
from storage.projects.tokens import create_token
from tests.app.web.api.servers import serving
from tests.app.worker_processes import Place
from tests.round_pools import draw_project, picture

DOCUMENT = (Path(__file__).resolve().parents[4] / "docs" / "api.md").read_text()


def examples() -> dict[str, str]:
    """Heading -> its Python example."""
    parts = re.split(r"^##+ (.*)$", DOCUMENT, flags=re.MULTILINE)
    found = {}
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            found[title] = code
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_run_and_do_what_they_say(page_store, crew, tmp_path, monkeypatch, capsys):
    drawn = draw_project(page_store, n_items=45, n_held_out=6)
    settings = ProjectSettings(
        preset="smoke", kernel_network="fnn", batch_size=4, automatic_rounds=False, labels_per_item=2, blind=False
    )
    update_project(page_store, drawn.project_id, name="Digits", settings=settings)
    rename_classes(page_store, drawn.project_id, ("one", "two", "three"))
    monkeypatch.setenv("WINNOW_API_TOKEN", create_token(page_store, "notebook", "editor")[1])
    monkeypatch.setenv("MODEL_TOKEN", create_token(page_store, "model", "annotator", person="My model 1.0")[1])
    monkeypatch.chdir(tmp_path)
    pool, names = Pool(page_store, drawn.project_id), {}
    code = examples()
    with serving() as address:
        monkeypatch.setenv("WINNOW_ADDRESS", address)
        run(code["The client"], names)
        assert names["digits"].project.id == get_project(page_store, "Digits").id
        run(code["Label from a notebook"], names)
        me = annotator_named(page_store, "notebook").id
        assert [(event.kind, event.seconds) for event in pool.recent(me)] == [("label", 2.0)] * 3
        run(code["pandas in and out"], names)
        assert len(pool.recent(me)) == 7 and names["digits"].items_frame("labeled")["label"].notna().all()
        run(code["Labels of a model"], names)
        assert len(pool.recent(annotator_named(page_store, "My model 1.0").id)) == 2
        assert pool.counts().labeled == 9 and pool.counts().waiting == 39
        crew.start(Place(home=page_store.home))
        run(code["Start a round and wait"], names)
        assert names["finished"].status == "finished"
        predictions: pd.DataFrame = names["digits"].predictions_frame()
        assert list(predictions.columns) == ["one", "two", "three"] and len(predictions) == 45 - 9
        assert (predictions.sum(axis=1) - 1).abs().max() < 1e-4
        picks = names["digits"].picks_frame(names["finished"])
        assert len(picks) == 4 and set(picks["item_id"]) <= set(drawn.item_ids)
        for number in range(2):
            (tmp_path / f"new-{number}.png").write_bytes(picture(number, 1_000 + number))
        (tmp_path / "broken.png").write_bytes(b"\x89PNG broken")
        run(code["The model and its predictions"], names)
        check_model_and_predictions(names, tmp_path)
        run(code["Your own embeddings"], names)
        assert (names["added"]["items"], names["added"]["of"], names["added"]["dimension"]) == (45, 45, 2)
        run(code["Export"], names)
        with zipfile.ZipFile(names["path"]) as archive:
            assert "labels.csv" in archive.namelist()
        names["client"].close()
    assert set(code) == set(RUN), "every example is run"


def check_model_and_predictions(names: dict[str, Any], folder: Path) -> None:
    """The downloaded model, run by its own script, gives the probabilities that the server gave."""
    with zipfile.ZipFile(names["model_file"]) as archive:
        archive.extractall(folder / "model")
    inside = next(path.parent for path in (folder / "model").rglob("predict.py"))
    command = [sys.executable, "predict.py", "--all", str(folder / "new-0.png"), str(folder / "new-1.png")]
    printed = subprocess.run(command, cwd=inside, capture_output=True, text=True, check=True).stdout
    new: pd.DataFrame = names["new"]
    assert list(new["file"]) == ["new-0.png", "new-1.png", "broken.png"]
    assert list(new["error"].notna()) == [False, False, True] and new["class_name"].isna().tolist()[2]
    assert (new[["p_one", "p_two", "p_three"]].sum(axis=1)[:2] - 1).abs().max() < 1e-4
    by_script = pd.read_csv(io.StringIO(printed))
    for name in ("one", "two", "three"):
        assert (by_script[name] - new[f"p_{name}"][:2]).abs().max() < 1e-4
    assert list(by_script["class"]) == list(new["class_name"][:2])
    assert len(names["waiting"]) == 10 and names["waiting"]["class_name"].notna().all()


RUN: list[str] = []


def run(code: str, names: dict[str, Any]) -> None:
    RUN.append(next(title for title, text in examples().items() if text == code))
    exec(compile(code, "docs/api.md", "exec"), names)


def rename_classes(store, project_id: int, wanted: tuple[str, ...]) -> None:
    from storage.projects.classes import list_classes, rename_class

    for row, name in zip(list_classes(store, project_id), wanted, strict=True):
        rename_class(store, project_id, row.id, name)
