"""Commands for the models of rounds: export, name, predict, diff, verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from app.cli.options import Hop, Json, Project, Windows
from app.cli.output import print_note, progress_bar, show
from app.cli.projects import find_project, open_store
from app.views.text import count

model = typer.Typer(help="Export the model of a round, or name a round.", no_args_is_help=True, rich_markup_mode=None)
RoundOption = Annotated[
    str | None, typer.Option("--round", help="Number or name of the round; default: the newest round with a model.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(model, name="model")
    for command in (predict, diff, verify):
        app.command()(command)


@model.command("export")
def export_model(
    project: Project,
    target: Annotated[Path, typer.Argument(help="A new folder, or a file whose name ends in .zip.")],
    round_: RoundOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
    as_json: Json = False,
) -> None:
    """Export the model of a round as ONNX and safetensors, with everything needed to use it without Winnow."""
    from app.jobs.operations import export_round_model
    from app.jobs.requests import ModelRequest

    with open_store() as store, progress_bar("Exporting the model") as report:
        found = find_project(store, project)
        request = ModelRequest(project_id=found.id, target=str(target), round=round_, overwrite=overwrite)
        done = export_round_model(store, request, report)
    accuracy = done["test_accuracy"]
    measured = f" Test accuracy: {accuracy['value']:.1%} of {accuracy['n']:,} items." if accuracy else ""
    show(done, as_json, f"The model of round {done['round']} is in {done['target']}.{measured}")


@model.command("name")
def name_round(
    project: Project,
    round_: Annotated[str, typer.Argument(metavar="ROUND", help="Number or current name of the round.")],
    name: Annotated[str, typer.Argument(help="The new name; '' removes the name.")],
    as_json: Json = False,
) -> None:
    """Name a round, so that commands and exports can refer to it."""
    from storage.rounds.names import find_round, set_round_name

    with open_store() as store:
        found = find_project(store, project)
        row = find_round(store, found.id, round_)
        given = set_round_name(store, found.id, row.id, name)
    sentence = f"Round {row.number} is called {given!r}." if given else f"Round {row.number} has no name now."
    show({"round": row.number, "name": given}, as_json, sentence)


def predict(  # noqa: PLR0913 (one parameter for each option)
    project: Project,
    paths: Annotated[list[str], typer.Argument(help="Files or folders.")],
    out: Annotated[Path, typer.Option(help="Table to write: .csv, .jsonl or .parquet.")],
    round_: RoundOption = None,
    all_: Annotated[bool, typer.Option("--all", help="Also write the probability of every class.")] = False,
    windows: Windows = None,
    hop: Hop = None,
    tracks: Annotated[
        Literal["audacity", "raven"] | None,
        typer.Option(help="Also write Audacity label tracks or Raven selection tables, in a folder next to the table."),
    ] = None,
    tracks_above: Annotated[
        float, typer.Option(help="Write only predictions with at least this confidence (0 to 1) to the tracks.")
    ] = 0.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the table and start again.")] = False,
    as_json: Json = False,
) -> None:
    """Predict the classes of files with the model of a round. Run an interrupted command again to continue it."""
    from app.cli.commands.import_ import window_options
    from app.jobs.predicting import PredictOptions, predict_files

    options = PredictOptions(
        paths=tuple(paths), target=str(out), round=round_, all_probabilities=all_, overwrite=overwrite,
        windows=window_options(windows, hop), tracks=tracks, tracks_above=tracks_above,
    )  # fmt: skip
    with open_store() as store, progress_bar("Predicting") as report:
        done = predict_files(store, find_project(store, project).id, options, report)
    for one in done["unreadable_files"]:
        print_note(f"{one['file']} cannot be read: {one['error']}")
    if done["unreadable"] > len(done["unreadable_files"]):
        print_note(
            f"{done['unreadable'] - len(done['unreadable_files']):,} more files cannot be read; see the column error."
        )
    earlier = f" {done['continued']:,} of them were predicted before." if done["continued"] else ""
    what = "files" if windows is None else "files and windows"
    beside = f" Tracks: {done['tracks']}." if "tracks" in done else ""
    sentence = f"{done['files']:,} {what} in {done['target']}, predicted by round {done['round']}.{earlier}{beside}"
    show(done, as_json, sentence)


def diff(
    project: Project,
    first: Annotated[str, typer.Argument(metavar="ROUND", help="Number or name of a round.")],
    second: Annotated[str, typer.Argument(metavar="ROUND", help="Number or name of another round.")],
    as_json: Json = False,
) -> None:
    """Compare two rounds: accuracy on the same test items, changed predictions, classes and settings."""
    from dataclasses import asdict

    from storage.rounds.diff import compare_rounds
    from storage.rounds.names import find_round

    with open_store() as store:
        found = find_project(store, project)
        rows = [find_round(store, found.id, one) for one in (first, second)]
        compared = compare_rounds(store, found.id, rows[0], rows[1])
    show(asdict(compared), as_json, lambda: diff_words(compared))


def diff_words(found: Any) -> str:
    """A comparison of two rounds as lines of text."""
    lines = [f"Round {found.first} -> round {found.second}; labels {found.n_labeled[0]:,} -> {found.n_labeled[1]:,}"]
    if (one := found.accuracy) is not None:
        low, high = (100 * bound for bound in one.interval)
        lines += [
            f"Test accuracy on the same {one.n:,} items: {one.first / one.n:.1%} -> {one.second / one.n:.1%}",
            f"Difference: {100 * one.difference:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f} (Bonett-Price); "
            f"{count(one.only_second, 'item')} better, {one.only_first:,} worse; p = {one.p_value:.3g} (exact McNemar)",
        ]
        lines += [f"  {each.name}: {each.first:,} -> {each.second:,} of {each.n:,}" for each in found.per_class]
    else:
        lines.append("The rounds have no test items in common, so accuracy is not compared.")
    lines.append(
        f"Changed predictions: {found.n_changed:,} of {found.n_compared:,} items without a label in both rounds"
    )
    lines += [f"  {before} -> {after}: {number:,}" for before, after, number in found.changes]
    lines += [f"Setting {name}: {before} -> {after}" for name, (before, after) in found.settings.items()]
    return "\n".join(lines)


def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of an exported model or of exported labels.")],
    as_json: Json = False,
) -> int:
    """Recompute the hashes of an export's files and rows, and list mismatches."""
    from dataclasses import asdict

    from storage.exporting.verify import verify_folder

    with progress_bar("Verifying") as report:
        found = verify_folder(folder, report)
    source = found.source
    named = f" ({source['name']})" if source["name"] else ""
    origin = f"round {source['round']}{named}, seed {source['seed']}" if source["round"] else "no round"
    checked = count(found.n_files, "file") + (f" and {count(found.n_rows, 'row')}" if found.kind == "export" else "")
    lines = [f"{found.kind.capitalize()} from {origin}: {checked} checked."]
    lines += found.problems or ["Everything fits."]
    show(asdict(found), as_json, "\n".join(lines))
    return 1 if found.problems else 0
