"""Manifests in common forms: every row gets a verdict, and nothing is imported partially by accident."""

from __future__ import annotations

import json
import zipfile

import pytest
from sqlalchemy import func, select

from core.errors import InvalidInput
from core.limits import Limits
from storage.database.schema import Item
from storage.importing.open import open_source
from storage.importing.preview import ClassRules, preview
from storage.importing.run import ImportOptions, check_source, run_import
from storage.importing.tables.readers import read_table
from storage.labeling.pool import Pool
from storage.projects.classes import list_classes
from storage.projects.projects import create_project
from tests.storage.made_media import picture, wav, write_files, zip_of

ROWS = 'path,label,split\na.wav,dog,train\n"b.wav","hot\ndog",test\nsub/c.wav,Katze é,\n'

pytestmark = pytest.mark.usefixtures("examined_here")


@pytest.fixture
def folder(tmp_path):
    return write_files(tmp_path / "in", {"a.wav": wav(1), "b.wav": wav(2), "sub/c.wav": wav(3)})


@pytest.fixture
def audio(sqlite_store) -> int:
    return create_project(sqlite_store, "sounds", "audio").id


def labels_of(store, project: int) -> dict[str, str | None]:
    names = {row.id: row.name for row in list_classes(store, project)} | {None: None}
    with store.read() as connection:
        query = select(Item.id, Item.name, Item.truth_class_id).where(Item.project_id == project)
        rows = connection.execute(query).all()
    given = {item.id: item.class_id for item in Pool(store, project).items()}
    return {row.name: names[given[row.id] or row.truth_class_id] for row in rows}


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (ROWS, "utf-8"),
        (ROWS, "utf-8-sig"),
        (ROWS, "utf-16"),
        (ROWS, "utf-16-le"),
        (ROWS, "latin-1"),
        (ROWS.replace(",", ";"), "utf-8"),
        (ROWS.replace(",", "\t"), "utf-8"),
        (ROWS.replace("\n", "\r\n"), "utf-8"),
        ("\n" + ROWS.replace("path,label,split", " File_Name , class ,subset"), "utf-8"),
    ],
)
def test_csv_in_every_usual_form_is_read(sqlite_store, audio, folder, text, encoding):
    """Byte order marks, UTF-16, Latin-1, other separators, quoted line breaks."""
    (folder / "list.csv").write_bytes(text.lstrip("\n").replace("File_Name", "file_name").encode(encoding))
    report = run_import(sqlite_store, audio, open_source(folder / "list.csv"))
    assert (report.imported, report.held_out, report.labels) == (3, 1, 2)
    found = labels_of(sqlite_store, audio)
    assert {name: label.replace("\r\n", "\n") for name, label in found.items() if label} == {
        "a.wav": "dog", "b.wav": "hot\ndog", "sub/c.wav": "Katze é",
    }  # fmt: skip


def test_jsonl_and_manifests_in_folders_and_archives_are_read(sqlite_store, folder, tmp_path):
    lines = [{"path": "a.wav", "label": "dog"}, {"path": "sub/c.wav", "label": 7, "split": "test"}]
    text = "\n".join(map(json.dumps, lines))
    (folder / "manifest.jsonl").write_text(text)
    archive = zip_of(tmp_path / "x.zip", {"manifest.jsonl": text.encode(), "a.wav": wav(1), "sub/c.wav": wav(3)})
    for number, path in enumerate((folder, folder / "manifest.jsonl", archive)):
        project = create_project(sqlite_store, f"p{number}", "audio").id
        source = open_source(path)
        report = run_import(sqlite_store, project, source)
        source.close()
        assert (report.imported, report.held_out) == (2, 1)
        assert labels_of(sqlite_store, project) == {"a.wav": "dog", "sub/c.wav": "7"}


BAD = [
    ("missing.wav,dog,", "no such file"),
    ("../secret.wav,dog,", "'..'"),
    ("/etc/passwd,dog,", "outside"),
    ("C:\\x.wav,dog,", "absolute"),
    ("http://example.org/a.wav,dog,", "address"),
    ("https://example.org/a.wav,dog,", "address"),
    ("file:///etc/passwd,dog,", "address"),
    ("data:audio/wav;base64,dog,", "address"),
    ("a.wav,dog", "2 cells"),
    ("b.wav,dog,train,extra", "4 cells"),
    ("b.wav,dog,sometimes", "split"),
    (",dog,", "path is empty"),
    ("sub,dog,", "not a regular file"),
    ("link.wav,dog,", "symbolic link"),
    ("linked/c.wav,dog,", "symbolic link"),
    ("page.wav,dog,", "HTML"),
]


@pytest.mark.parametrize(("row", "words"), BAD)
def test_each_wrong_row_gets_its_verdict_and_stops_the_import(sqlite_store, audio, folder, row, words):
    """The row is named with its reason and nothing is imported without an explicit choice."""
    (folder / "page.wav").write_text("<html>" * 20)
    (folder / "link.wav").symlink_to(folder / "a.wav")
    (folder / "linked").symlink_to(folder / "sub")
    (folder / "list.csv").write_text(f"path,label,split\na.wav,dog,train\n{row}\nsub/c.wav,dog,\n")
    source = open_source(folder / "list.csv")
    seen = preview(source, ClassRules({}, "ask"), kind="audio")
    problems = [one for one in seen.problems if one.row == 2]
    assert seen.n_entries == 3 and len(problems) == 1 and words in problems[0].problem
    if words == "HTML":  # only reading shows it: refused while the rest is imported
        return
    with pytest.raises(InvalidInput, match="row 2"):
        run_import(sqlite_store, audio, source)
    with sqlite_store.read() as connection:
        assert connection.execute(select(func.count()).select_from(Item)).scalar_one() == 0
    assert list_classes(sqlite_store, audio) == []
    report = run_import(sqlite_store, audio, source, ImportOptions(skip_problems=True))
    assert (report.imported, report.n_refused) == (2, 1)


def test_a_path_named_twice_is_a_problem(folder):
    (folder / "list.csv").write_text("path,label\na.wav,dog\n./a.wav,cat\n")
    found = preview(open_source(folder / "list.csv")).rows
    assert [one.problem for one in found] == ["", "Row 1 names the same file."]


@pytest.mark.parametrize(
    ("label", "words"),
    [("Dog", "differs from 'dog' only in case"), ("dog ", "only in case or spaces"), ("cow", "no class 'cow'")],
)
def test_unknown_and_similar_classes_are_asked_about(sqlite_store, folder, label, words):
    """A class the project does not have, and one that differs in case or spaces."""
    project = create_project(sqlite_store, "p", "audio", ["dog"]).id
    (folder / "list.csv").write_text(f"path,label\na.wav,dog\nb.wav,{label}\n")
    with pytest.raises(InvalidInput, match=words):
        run_import(sqlite_store, project, open_source(folder / "list.csv"))
    assert [row.name for row in list_classes(sqlite_store, project)] == ["dog"]
    run_import(sqlite_store, project, open_source(folder / "list.csv"), ImportOptions(classes="add"))
    assert [row.name for row in list_classes(sqlite_store, project)] == ["dog", label]


def test_classes_with_strange_names_are_kept_exactly(sqlite_store, audio, tmp_path):
    strange = ["a/b", "..", "CON", "![x](http://e)", "=1+1", "*b*", "\u202ereverse"]
    root = write_files(tmp_path / "in", {f"{n}.wav": wav(n) for n in range(len(strange))})
    lines = [json.dumps({"path": f"{n}.wav", "label": name}) for n, name in enumerate(strange)]
    (root / "manifest.jsonl").write_text("\n".join(lines))
    run_import(sqlite_store, audio, open_source(root))
    assert [row.name for row in list_classes(sqlite_store, audio)] == strange
    inside = {path.name for path in sqlite_store.home.rglob("*")}
    assert not inside & {"b", "CON", "=1+1", "*b*"}


def test_a_quote_that_is_never_closed_does_not_swallow_the_file(tmp_path):
    path = tmp_path / "list.csv"
    path.write_text('path,label\na.wav,"dog\n' + "b.wav,cat\n" * 120_000)
    rows = list(read_table(path))
    assert rows[0].problem and len(rows) < 120_000


def test_manifests_say_what_is_wrong_with_them(tmp_path):
    wrong = {"a.csv": b"x,y\n1,2\n", "b.parquet": b"PAR1nope", "c.json": b"{}", "d.json": b'[{"a": 1}'}
    for name, data in wrong.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidInput, match=name):
            check_source(open_source(tmp_path / name), ImportOptions())
    (tmp_path / "e.exe").write_bytes(b"MZ")
    with pytest.raises(InvalidInput, match="not a folder, a zip archive or a manifest"):
        open_source(tmp_path / "e.exe")
    with pytest.raises(InvalidInput, match="max_manifest_bytes"):
        open_source(tmp_path / "a.csv", Limits(max_manifest_bytes=3))


def test_wrong_lines_of_jsonl_are_verdicts(tmp_path):
    lines = b'{"path": "a.wav"}\n[1]\nnope\n{"path": "a.wav", "at": "x", "label": "d"}\n'
    write_files(tmp_path, {"a.wav": wav(1), "m.jsonl": lines})
    found = [one.problem for one in preview(open_source(tmp_path / "m.jsonl")).rows]
    assert found[0] == "" and "JSON object" in found[1] and "not JSON" in found[2] and "ISO 8601" in found[3]


def test_the_hash_of_a_row_is_compared_with_the_bytes(sqlite_store, audio, folder):
    (folder / "list.csv").write_text(f"path,sha256\na.wav,{'0' * 64}\nb.wav,xyz\n")
    report = run_import(sqlite_store, audio, open_source(folder / "list.csv"), ImportOptions(skip_problems=True))
    assert [reason for _, reason in report.refused] == [
        "The sha256 is not a SHA-256 in hex.", "Its bytes are not those that the manifest names by their hash.",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_million_rows_are_previewed_in_flat_memory(tmp_path):
    """With fewer rows and measured memory: 200 verdicts and one number per row are kept."""
    import tracemalloc

    (tmp_path / "in").mkdir()

    def peak(n: int) -> int:
        path = tmp_path / "in" / f"{n}.csv"
        path.write_text("path,label\n" + "".join(f"{k}.wav,c{k % 3}\n" for k in range(n)))
        tracemalloc.start()
        seen = preview(open_source(path), ClassRules({}, "ask"), look=False)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (seen.n_entries, seen.n_problems, len(seen.problems)) == (n, n, min(n, 200))
        return size

    peak(100)
    assert peak(20_000) < 1.2 * peak(2_000) + 100_000


def test_pictures_in_a_manifest_of_a_sound_project_are_named_in_the_preview(folder):
    (folder / "p.png").write_bytes(picture())
    (folder / "list.csv").write_text("path\na.wav\np.png\n")
    seen = preview(open_source(folder / "list.csv"), kind="audio")
    assert [one.problem for one in seen.problems] == ["It is image/png; this project holds audio."]


def test_a_manifest_in_an_archive_cannot_name_refused_entries(tmp_path):
    path = zip_of(tmp_path / "x.zip", {"manifest.csv": b"path\nzeros.wav\nb.wav\n", "b.wav": wav(1)})
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.wav", bytes(3 << 20))
    source = open_source(path)
    first, second = source.entries()
    assert "max_zip_ratio" in first.problem and second.problem == ""
    source.close()
