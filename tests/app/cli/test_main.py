"""The command line: results on stdout, one sentence on stderr when something is wrong, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.cli import main as cli
from app.cli.commands import round as cli_round
from app.cli.main import main
from core.types import Selection
from storage.database import backups
from storage.database.store import Store
from storage.labeling.pool import Pool
from storage.projects.annotators import annotator_named
from storage.projects.classes import list_classes
from storage.projects.projects import archive_project, get_project
from storage.rounds.log import RoundLog
from tests.storage.made_media import picture, wav, write_files

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for name in ("WINNOW_DATABASE_URL", "WINNOW_ARTIFACTS", "WINNOW_DEBUG", "WINNOW_LIMITS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WINNOW_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def sounds(home, tmp_path, capsys) -> Path:
    """A folder, imported as the project `animals`."""
    folder = write_files(tmp_path / "in", {"dog/a.wav": wav(1), "cat/b.wav": wav(2), "cat/c.wav": wav(3)})
    assert main(["import", str(folder), "-p", "animals"]) == 0
    capsys.readouterr()
    return folder


def result(capsys) -> dict:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


def test_help_names_every_command_and_is_quick():
    """`--help` loads neither torch nor streamlit nor the database layer."""
    code = (
        "import sys; from app.cli.main import main; code = main(['--help']); "
        "assert not {'torch', 'streamlit', 'sqlalchemy', 'dbos'} & set(sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("run", "worker", "import", "export", "projects", "round", "backup", "restore", "move", "check"):
        assert f"\n  {name} " in done.stdout


def test_import_reports_what_it_did_and_can_be_run_again(home, tmp_path, capsys):
    files = {"dog/a.wav": wav(1), "dog/same.wav": wav(1), "page/page.wav": b"<html>" * 9}
    folder = write_files(tmp_path / "in", files)
    assert main(["import", str(folder), "--project", "animals", "--json"]) == 0
    output = result(capsys)
    assert (output["imported"], output["n_duplicates"], output["n_refused"], output["labels"]) == (1, 1, 1, 1)
    assert output["duplicates"] == [["dog/same.wav", "dog/a.wav"]]
    assert main(["import", str(folder), "--project", "animals"]) == 0
    words = capsys.readouterr().out
    assert "0 imported, 1 already in the project" in words and "'dog/same.wav' equals 'dog/a.wav'" in words


def test_the_kind_of_a_new_project_is_determined_by_its_files(home, tmp_path, capsys):
    main(["import", str(write_files(tmp_path / "p", {"a.png": picture()})), "-p", "pictures"])
    main(["projects", "--json"])
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["name"], row["kind"], row["total"]) for row in rows] == [("pictures", "image", 1)]


def test_a_preview_writes_nothing(home, tmp_path, capsys):
    folder = write_files(tmp_path / "in", {"a.wav": wav(1)})
    (folder / "list.csv").write_text("path,label\na.wav,dog\nhttp://x/b.wav,dog\n")
    assert main(["import", str(folder / "list.csv"), "-p", "new", "--preview", "--json"]) == 0
    output = result(capsys)
    assert (output["n_entries"], output["n_problems"]) == (2, 1)
    assert "address" in output["problems"][0]["problem"]
    with Store.open(home=home) as store, pytest.raises(Exception, match="no project"):
        get_project(store, "new")


def test_an_open_question_leaves_no_project_behind(home, tmp_path, capsys):
    folder = write_files(tmp_path / "in", {"images/a.png": picture(), "images/b.png": picture(seed=2)})
    assert main(["import", str(folder), "-p", "new"]) == 1
    output = capsys.readouterr().err
    assert "usually not the name of a class" in output and "Answer with --folders" in output
    with Store.open(home=home) as store, pytest.raises(Exception, match="no project"):
        get_project(store, "new")
    assert main(["import", str(folder), "-p", "new", "--folders", "ignore", "--json"]) == 0
    assert result(capsys)["imported"] == 2


def test_a_preview_lists_splits_columns_first_rows_and_questions(home, tmp_path, capsys):
    files = {f"images/{n}.png": picture(seed=n) for n in range(3)}
    files["train.csv"] = b"Image_ID,Label,Set\n0,cat,train\n1,dog,val\n2,cat,test\n"
    folder = write_files(tmp_path / "in", files)
    assert main(["import", str(folder), "-p", "new", "--preview"]) == 0
    words = capsys.readouterr().out
    assert "3 entries, 0 with problems, 1 test item, 1 validation item, 0 without a label." in words
    assert "Labels from: train.csv." in words and "Splits: train 1, val 1, test 1." in words
    assert "path = 'Image_ID', label = 'Label', split = 'Set'; files in images." in words
    assert "Image_ID: 0, Label: cat, Set: train" in words


def test_a_table_whose_files_are_missing_is_refused_with_the_first_reason(home, tmp_path, capsys):
    folder = write_files(tmp_path / "in", {"list.csv": b"path,label\nmissing.png,cat\n"})
    assert main(["import", str(folder / "list.csv"), "-p", "new"]) == 1
    assert "row 1 (missing.png): There is no such file. Nothing was imported." in capsys.readouterr().err


def test_columns_and_the_media_root_can_be_named(home, tmp_path, capsys):
    folder = write_files(tmp_path / "in", {"table.csv": b"a,b,c\nx.png,cat,val\n", "other/x.png": picture()})
    named = ["--path-column", "A", "--label-column", "b", "--split-column", "c", "--media-root", "other"]
    assert main(["import", str(folder / "table.csv"), "-p", "new", *named, "--json"]) == 0
    output = result(capsys)
    assert (output["imported"], output["held_out"], output["splits"]) == (1, 1, {"val": 1})
    assert main(["import", str(folder / "table.csv"), "-p", "new", "--path-column", "nope"]) == 1
    assert "no column 'nope'" in capsys.readouterr().err


def test_limits_and_label_rules_are_options(home, tmp_path, capsys):
    folder = write_files(tmp_path / "in", {"a.wav": wav(1)})
    arguments = ["import", str(folder), "-p", "x", "--limit", "max_seconds=0.01", "--json"]
    assert main(arguments) == 1
    assert "max_seconds" in result(capsys)["refused"][0][1]
    assert main(["import", str(folder), "-p", "x", "--labels", "hidden", "--link", "--json"]) == 0
    assert result(capsys)["labels"] == 0


def test_export_writes_files_and_prints_the_path(sounds, tmp_path, capsys):
    assert main(["export", "animals", str(tmp_path / "out"), "--format", "jsonl", "--json"]) == 0
    assert result(capsys)["rows"] == 3
    assert main(["export", "1", str(tmp_path / "out.zip"), "-f", "folders"]) == 0
    assert "3 rows in" in capsys.readouterr().out


@pytest.mark.parametrize(("rule", "rows"), [("keep", 3), ("majority", 2), ("omit", 2)])
def test_export_leaves_out_contested_items_on_request(sounds, home, tmp_path, capsys, rule, rows):
    with Store.open(home=home) as store:
        first = Pool(store, 1).items()[0]
        other = next(row.id for row in list_classes(store, 1) if row.id != first.class_id)
        assert Pool(store, 1).label(first.id, other, annotator=annotator_named(store, "Ben").id).accepted
    assert main(["export", "animals", str(tmp_path / "out"), f"--contested={rule}", "--json"]) == 0
    done = result(capsys)
    assert (done["rows"], done["contested"], done["contested_left_out"]) == (rows, rows - 2, 3 - rows)
    assert main(["export", "animals", str(tmp_path / "text"), f"--contested={rule}"]) == 0
    assert ("Contested rows: 1 (" if rule == "keep" else "Contested items left out: 1.") in capsys.readouterr().out


def test_check_marks_what_is_missing(sounds, home, capsys):
    with Store.open(home=home) as store:
        first = Pool(store, 1).items()[0]
        store.media.path(first.sha256).unlink()
    assert main(["check", "animals", "--json"]) == 0
    assert result(capsys) == {"checked": 3, "missing": 1, "changed": 0, "repaired": 0}


def test_backup_and_restore_bring_labels_back(sounds, home, tmp_path, capsys):
    assert main(["backup", str(tmp_path / "copy.sqlite"), "--json"]) == 0
    assert result(capsys)["backup"] == str(tmp_path / "copy.sqlite")
    with Store.open(home=home) as store:
        pool = Pool(store, 1)
        annotator = pool.history(pool.items()[0].id)[0].annotator_id
        pool.undo(annotator=annotator)
        assert pool.counts().labeled == 2
    assert main(["restore", str(tmp_path / "copy.sqlite"), "--json"]) == 0
    assert Path(result(capsys)["before"]).is_file()
    with Store.open(home=home) as store:
        assert Pool(store, 1).counts().labeled == 3


@pytest.mark.postgres
def test_move_puts_everything_into_postgresql(sounds, postgres_url, capsys):
    assert main(["move", postgres_url, "--json"]) == 0
    output = result(capsys)
    assert output["tables"]["items"]["n_rows"] == 3
    with Store.open(postgres_url, Path(sounds).parent / "home") as store:
        assert Pool(store, 1).counts().labeled == 3


PROBLEMS = [
    (["export", "nope", "x"], 1, "There is no project 'nope'. There are: 'animals'."),
    (["export", "animals", "x", "--pseudo-above", "7"], 1, "from 0 to 1"),
    (["export", "animals", "x", "--pseudo-above", "0.7"], 1, "no round has finished"),
    (["import", "/nope", "-p", "x"], 1, "There is no /nope"),
    (["import", ".", "-p", "x", "--limit", "max_moons=1"], 1, "max_moons"),
    (["restore", "/nope"], 1, "no backup"),
    (["move", "mysql://x/y"], 1, "PostgreSQL"),
    (["round", "animals", "--sideways"], 2, "No such option"),
    (["dance"], 2, "No such command"),
    (["import"], 2, "Missing"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), PROBLEMS)
def test_a_problem_gives_one_sentence_and_an_exit_code(sounds, tmp_path, monkeypatch, capsys, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code
    output = capsys.readouterr()
    assert words in output.err and output.err.count("\n") == 1
    assert "Traceback" not in output.err and output.out == ""


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (PermissionError(13, "Permission denied", "/data/x"), "Permission denied (/data/x)"),
        (ZeroDivisionError("division\nby zero"), "ZeroDivisionError: division by zero"),
        (ModuleNotFoundError("no", name="espeak"), "espeak is missing"),
    ],
)
def test_an_unexpected_error_also_gives_a_message(home, monkeypatch, capsys, problem, words):
    def fail() -> Store:
        raise problem

    monkeypatch.setattr(cli, "open_store", fail)
    assert main(["projects"]) == 1
    output = capsys.readouterr().err
    assert words in output and output.count("\n") == 1
    monkeypatch.setenv("WINNOW_DEBUG", "1")
    main(["projects"])
    assert "Traceback" in capsys.readouterr().err


def test_a_round_is_requested_and_followed_until_it_ends(sounds, home, monkeypatch, capsys):
    """The test takes the role of the worker: nothing else happens between the request and following it."""
    assert main(["round", "animals", "--no-wait", "--json"]) == 0
    asked = result(capsys)
    assert (asked["round"], asked["status"]) == (1, "requested")
    naps = []

    def work(seconds: float) -> None:
        naps.append(seconds)
        with Store.open(home=home) as store:
            log = RoundLog(store, 1)
            log.start(asked["id"])
            nothing = Selection(item_ids=np.array([], np.int64), scores=np.array([], np.float32), strategy="bico")
            log.finish(asked["id"], arrays={}, selection=nothing, metrics={"accuracy": 0.5})

    monkeypatch.setattr(cli_round.time, "sleep", work)
    assert main(["round", "animals", "--json"]) == 0
    assert result(capsys)["status"] == "finished" and naps


def test_a_round_that_failed_prints_its_message(sounds, home, monkeypatch, capsys):
    def work(seconds: float) -> None:
        with Store.open(home=home) as store:
            log = RoundLog(store, 1)
            row = log.latest()
            assert row is not None
            log.fail(row.id, "The loss was not a number.")

    monkeypatch.setattr(cli_round.time, "sleep", work)
    assert main(["round", "animals"]) == 1
    output = capsys.readouterr()
    assert output.err == "The loss was not a number.\n" and output.out == ""


def test_an_archived_project_is_listed_on_request_and_restored_once(home, sounds, capsys):
    with Store.open(home=home) as store:
        archive_project(store, get_project(store, "animals").id)
    main(["projects"])
    assert "animals" not in capsys.readouterr().out
    main(["projects", "--archived"])
    assert "animals  (audio, 3 of 3 labeled) archived" in capsys.readouterr().out
    assert main(["projects", "--restore", "animals", "--json"]) == 0
    assert result(capsys) == {"id": 1, "name": "animals", "archived": False}
    main(["projects", "--json"])
    assert [row["archived"] for row in json.loads(capsys.readouterr().out)] == [False]
    assert main(["projects", "--restore", "animals"]) == 1
    assert capsys.readouterr().err == "The project 'animals' is not archived. Nothing was changed.\n"


def test_backup_keeps_the_configured_number_of_automatic_backups(sounds, home, tmp_path, capsys):
    assert main(["backup", str(tmp_path / "copy.sqlite"), "--keep", "3", "--json"]) == 0
    with Store.open(home=home) as store:
        assert backups.kept(store) == 3
    capsys.readouterr()
    assert main(["backup", "--keep", "0"]) == 1
    assert "0 backups cannot be kept" in capsys.readouterr().err


def test_a_damaged_store_is_restored_and_its_backups_are_listed(sounds, home, tmp_path, capsys):
    assert main(["backup", "--json"]) == 0
    path = result(capsys)["backup"]
    live = home / "winnow.sqlite"
    live.write_bytes(b"no database here" + live.read_bytes()[16:])
    assert main(["projects"]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert main(["backup", "--list", "--json"]) == 0
    assert path in result(capsys)
    assert main(["restore", path, "--json"]) == 0
    assert ".damaged-" in result(capsys)["before"]
    assert main(["projects", "--json"]) == 0
