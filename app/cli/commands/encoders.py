"""`python -m app encoders` and `embeddings`: manage pretrained encoders and embeddings from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import Json, Project
from app.cli.output import progress_bar, show
from app.cli.projects import find_project, open_store
from app.views.text import count

if TYPE_CHECKING:
    from core.encoders.checks import CheckedEncoder

HUB = "hf:"
encoders = typer.Typer(
    help="Pretrained encoders: list, add, check, compare, remove.", no_args_is_help=True, rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    app.add_typer(encoders, name="encoders")
    app.command()(embeddings)


@encoders.command("list")
def list_encoders(as_json: Json = False) -> None:
    """List the encoders of this store, the built-in ones first."""
    from core.encoders.built_in import BUILT_IN
    from core.encoders.folders import Encoder, installed
    from storage.database.locations import from_environment

    there = dict(installed(from_environment().home))
    rows: list[dict[str, Any]] = []
    for name in [*BUILT_IN, *(name for name in there if name not in BUILT_IN)]:
        found = there.get(name)
        row = {"name": name, "built_in": name in BUILT_IN, "kind": BUILT_IN.get(name, ("",))[0], "problem": ""}
        if isinstance(found, Encoder):
            about = found.description
            row |= {"kind": about.kind, "dimension": about.output.width, "license": about.license}
            row |= {"identity": found.identity}
        elif found is not None:
            row["problem"] = str(found)
        rows.append(row)
    lines = [
        f"{row['name']:<24} {row['kind']:<6} " + (row["problem"] or (
            f"{row['dimension']:>6} numbers  {row['license']}  {row['identity'][:12]}" if "identity" in row
            else "built in, made when it is first used"
        ))
        for row in rows
    ]  # fmt: skip
    show(rows, as_json, "\n".join(lines))


@encoders.command("add")
def add(
    source: Annotated[
        str, typer.Argument(help="A folder, an .onnx file with its .json, a tar or zip archive, or hf:OWNER/NAME.")
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Replace another encoder of the same name.")] = False,
    description: Annotated[
        Path | None, typer.Option(help="With hf: the encoder.json to use, where the repository has none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an encoder on probe items and add it under its name. Only hf:OWNER/NAME is downloaded."""
    from core.encoders.install import add_encoder
    from storage.database.locations import from_environment

    home = from_environment().home
    if source.startswith(HUB):
        from app.cli.commands.encoder_hub import fetched

        with fetched(source.removeprefix(HUB), description) as folder:
            checked = add_encoder(home, folder, replace=replace)
    else:
        checked = add_encoder(home, Path(source), replace=replace)
    _show_checked(checked, "Added", as_json)


@encoders.command("check")
def check(
    source: Annotated[str, typer.Argument(help="The name of an encoder of this store, or a folder.")],
    as_json: Json = False,
) -> None:
    """Check an encoder on probe items: its shape, and that its output is finite, repeatable and independent of the
    batch."""
    from core.encoders.built_in import BUILT_IN
    from core.encoders.checks import check_encoder
    from core.encoders.choice import encoder_named
    from core.encoders.folders import encoders_folder, open_encoder
    from storage.database.locations import from_environment

    home = from_environment().home
    if source in BUILT_IN:
        folder = encoder_named(home, source, BUILT_IN[source][0]).folder
    else:
        folder = Path(source) if Path(source).is_dir() else encoders_folder(home) / source
    if open_encoder(folder).is_table:
        show({"name": source, "table": True}, as_json, f"{source} is a table of embeddings: its files are in order.")
        return
    _show_checked(check_encoder(folder), "Checked", as_json)


def _show_checked(checked: CheckedEncoder, did: str, as_json: bool) -> None:
    about, identity = checked.encoder.description, checked.encoder.identity
    values = {
        "name": about.name,
        "kind": about.kind,
        "license": about.license,
        "dimension": about.output.width,
        "identity": identity,
        "batch": checked.batch,
        "milliseconds_per_window": round(1_000 * checked.seconds_per_window, 2),
    }
    text = (
        f"{did} {about.name}: {about.kind}, {about.output.width} numbers an item, "
        f"{1_000 * checked.seconds_per_window:.1f} ms a window, license {about.license}, identity {identity[:12]}."
    )
    show(values, as_json, text)


@encoders.command("audition")
def audition(project: Project, as_json: Json = False) -> None:
    """Compare every encoder of this store, and none, by cross-validation on the labels of a project."""
    from app.jobs.audition import audition as run
    from app.views.cards.audition_table import audition_lines

    with open_store() as store, progress_bar("Audition") as report:
        found = run(store, find_project(store, project), report)
    show(found, as_json, "\n".join(audition_lines(found)))


@encoders.command("remove")
def remove(name: Annotated[str, typer.Argument(help="The name of an encoder of this store.")]) -> None:
    """Remove an encoder. Rounds that used it keep their results and cannot be run again."""
    from core.encoders.install import remove_encoder
    from storage.database.locations import from_environment

    remove_encoder(from_environment().home, name)
    show({"removed": name}, False, f"Removed {name}. Rounds that used it keep their results.")


def embeddings(
    project: Project,
    file: Annotated[Path, typer.Argument(help=".npy with keys in a .txt beside it, or .parquet with both.")],
    name: Annotated[str, typer.Option(help="The name of the encoder that these embeddings become.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Replace earlier embeddings of this name.")] = False,
    as_json: Json = False,
) -> None:
    """Use embeddings that were computed elsewhere: one row per item, by SHA-256 or file name."""
    from app.jobs.embeddings import add_embeddings

    with open_store() as store, progress_bar("Reading") as report:
        found = add_embeddings(store, find_project(store, project), file, name, replace=replace, report=report)
    lines = [
        f"{found['items']:,} of {found['of']:,} items have embeddings of {found['dimension']} numbers, "
        f"as the encoder {found['name']}."
    ]
    if found["missing"]:
        shown = ", ".join(found["missing"][:5])
        lines.append(f"{count(len(found['missing']), 'item has', 'items have')} none: left out, such as {shown}.")
    if found["unused"]:
        lines.append(f"{count(found['unused'], 'row of the file belongs', 'rows of the file belong')} to no item.")
    lines.append(f"Use it: python -m app settings {project} --set preset=encoder --set encoder.name={found['name']}")
    show(found, as_json, "\n".join(lines))
