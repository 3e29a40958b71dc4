"""The command line. Each command imports its modules when it runs, so that `--help` is fast.

Every command prints its result on stdout (with `--json` as one JSON document) and its progress on stderr. On an error
it prints one sentence on stderr and exits with code 1.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from app.cli import options
from app.cli.commands import doctor, encoders, lifecycle, models, people
from app.cli.commands import store as store_commands
from app.cli.output import print_error, print_note, progress_bar, show
from app.cli.projects import find_project, open_store
from app.views.text import count
from core.config import Preset
from core.version import VERSION

app = typer.Typer(
    name="winnow",
    help="Winnow: label audio clips and pictures; the items that help the model most come first.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command()(store_commands.backup)
app.command()(store_commands.restore)
app.command()(store_commands.move)
app.add_typer(people.tokens, name="token")
app.command("role")(people.role)
app.command("people")(people.people)
app.command("audit")(people.audit)
lifecycle.register(app)
app.command()(doctor.doctor)
WrongUse: Any = typer.BadParameter.__mro__[2]  # the base class of all errors in a command's arguments
Json = options.Json
Project = options.Project
Changes = options.Changes
models.register(app)
encoders.register(app)
_built = cache(typer.main.get_command)  # built from the signatures of all commands, once per process


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"winnow {VERSION}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Winnow: label audio clips and pictures; the items that help the model most come first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code. Tracebacks are shown only with WINNOW_DEBUG=1."""
    command = _built(app)
    try:
        result = command.main(list(sys.argv[1:] if arguments is None else arguments), "winnow", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as leave:
        return int(leave.exit_code)
    except typer.Abort:
        return print_error(KeyboardInterrupt())
    except WrongUse as wrong:
        print_note(f"{wrong.format_message()} See: python -m app --help")
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (Exception, KeyboardInterrupt) as problem:
        return print_error(problem)


@app.command()
def run(
    host: Annotated[str | None, typer.Option(help="Address to listen on (WINNOW_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (WINNOW_PORT).")] = None,
    samples: Annotated[bool, typer.Option(help="Load the sample projects into a new store.")] = True,
) -> int:
    """Start the app and one worker. Ctrl-C stops both."""
    from app.cli.supervisor import launch

    return launch(host=host, port=port, samples=samples)


@app.command()
def worker() -> int:
    """Run rounds until the process is stopped. You can start several workers, also on several machines."""
    from app.worker.worker import main as work

    return work()


@app.command()
def live() -> int:
    """Update predictions after each label between rounds, until the process is stopped. `run` starts this process."""
    from app.live.process import main as follow

    return follow()


@app.command("import")
def import_(  # noqa: PLR0913 (one parameter for each option)
    source: Annotated[Path, typer.Argument(help="A folder, a zip archive, a manifest (CSV, JSONL, …) or an export.")],
    project: Annotated[str, typer.Option("--project", "-p", help="Name of the project; created if it does not exist.")],
    kind: options.Kind = None,
    labels: options.Labels = "given",
    link: Annotated[bool, typer.Option("--link", help="Link the files instead of copying them.")] = False,
    classes: options.Classes = "ask",
    skip_problems: Annotated[bool, typer.Option(help="Skip entries with problems and import the rest.")] = False,
    folders: options.Folders = "auto",
    splits: options.Splits = "auto",
    validation: options.Validation = "hold-out",
    table: options.Table = "",
    path_column: options.PathColumn = "",
    label_column: options.LabelColumn = "",
    split_column: options.SplitColumn = "",
    group_column: options.GroupColumn = "",
    media_root: options.MediaRoot = "",
    windows: options.Windows = None,
    hop: options.Hop = None,
    test_share: options.TestShare = 0.0,
    preview: Annotated[bool, typer.Option("--preview", help="Show what would be imported; write nothing.")] = False,
    limit: Annotated[list[str] | None, typer.Option(help="A limit, such as max_pixels=1000000; repeatable.")] = None,
    as_json: Json = False,
) -> int:
    """Import media into a project. Files that are already in the project are not imported again."""
    from app.cli.commands.import_ import preview_or_import, window_options
    from app.jobs.requests import ImportRequest
    from core.limits import limits_from
    from storage.importing.reading import ReadingOptions
    from storage.importing.run import ImportOptions

    reading = ReadingOptions(
        folders=folders, splits=splits, table=table, path_column=path_column, label_column=label_column,
        split_column=split_column, group_column=group_column, media_root=media_root,
    )  # fmt: skip
    wanted = ImportOptions(
        labels=labels, storage="link" if link else "copy", classes=classes, skip_problems=skip_problems,
        validation=validation, limits=limits_from(limit or ()), reading=reading,
        windows=window_options(windows, hop), test_share=test_share,
    )  # fmt: skip
    request = ImportRequest(source=str(source), project=project, kind=kind, options=wanted)
    return preview_or_import(request, as_json, preview=preview)


@app.command()
def export(  # noqa: PLR0913 (one parameter for each option)
    project: Project,
    target: Annotated[Path, typer.Argument(help="A new folder, or a file whose name ends in .zip.")],
    format_: options.ExportFormat = "csv",
    pseudo_above: options.PseudoAbove = None,
    held_out: options.HeldOut = False,
    contested: options.Contested = "keep",
    media: options.Media = False,
    media_prefix: options.MediaPrefix = None,
    arrays: options.Arrays = False,
    overwrite: options.Overwrite = False,
    as_json: Json = False,
) -> None:
    """Export labels with provenance: CSV, JSONL, Parquet, class folders, Label Studio tasks or Hugging Face dataset."""
    from dataclasses import asdict

    from app.jobs.operations import export_labels
    from app.jobs.requests import ExportRequest
    from storage.exporting.rows import ExportOptions

    wanted = ExportOptions(
        format=format_, pseudo_above=pseudo_above, held_out=held_out, media=media, media_prefix=media_prefix,
        arrays=arrays, overwrite=overwrite, contested=contested,
    )  # fmt: skip
    with open_store() as store, progress_bar("Exporting") as report:
        found = find_project(store, project)
        done = export_labels(store, ExportRequest(project_id=found.id, target=str(target), options=wanted), report)
    notes = f" {count(done.media_missing, 'file is', 'files are')} missing or changed." if done.media_missing else ""
    notes += f" Contested rows: {done.contested:,} (column contested)." if done.contested else ""
    notes += f" Contested items left out: {done.contested_left_out:,}." if done.contested_left_out else ""
    show(asdict(done), as_json, f"{count(done.rows, 'row')} in {done.target}.{notes}")


@app.command()
def summarize(  # noqa: PLR0913 (one parameter for each option)
    project: Project,
    target: Annotated[
        Path | None, typer.Argument(help="A new folder or .zip file for the items; default: print only the numbers.")
    ] = None,
    items: Annotated[int | None, typer.Option("--items", "-n", help="Number of items.")] = None,
    percent: Annotated[float | None, typer.Option(help="Size as a percentage of the labeled items.")] = None,
    weighted: Annotated[bool, typer.Option(help="Give each item a weight, or give all items the same weight.")] = True,
    joint: Annotated[
        bool, typer.Option("--joint", help="Select items for the network of the newest round as well.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Number of random subsets of the same size to compare with.")] = 5,
    seed: Annotated[
        int, typer.Option(help="Seed of the random subsets, and of the items set aside if there are no test items.")
    ] = 0,
    format_: options.ExportFormat = "csv",
    media: options.Media = False,
    overwrite: options.Overwrite = False,
    as_json: Json = False,
) -> None:
    """Select a small weighted subset of the labeled items, and measure its accuracy on the test items."""
    from app.cli.commands.summarize import summarize_and_report
    from app.jobs.requests import SummaryOptions, SummaryRequest
    from storage.exporting.rows import ExportOptions

    summary = SummaryOptions(items=items, percent=percent, weighted=weighted, joint=joint, n_draws=draws, seed=seed)
    wanted = ExportOptions(format=format_, media=media, overwrite=overwrite)
    with open_store() as store:
        request = SummaryRequest(
            project_id=find_project(store, project).id,
            target=None if target is None else str(target),
            summary=summary,
            options=wanted,
        )
        summarize_and_report(store, request, as_json)


@app.command()
def projects(
    archived: Annotated[bool, typer.Option("--archived", help="Include archived projects.")] = False,
    restore: Annotated[
        str | None, typer.Option("--restore", metavar="PROJECT", help="Restore an archived project by name or id.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the projects with their progress, or restore an archived project."""
    from dataclasses import asdict

    from core.config import require
    from storage.labeling.pool import Pool
    from storage.projects.projects import list_projects, restore_project

    with open_store() as store:
        if restore is not None:
            row = find_project(store, restore)
            require(row.archived_at is not None, f"The project {row.name!r} is not archived. Nothing was changed.")
            row = restore_project(store, row.id)
            show({"id": row.id, "name": row.name, "archived": False}, as_json, f"Restored the project {row.name!r}.")
            return
        rows = []
        for project in list_projects(store, include_archived=archived):
            counts = Pool(store, project.id).counts()
            about = {"id": project.id, "name": project.name, "kind": project.kind}
            rows.append(about | {"archived": project.archived_at is not None} | asdict(counts))
    line = "{id:>4}  {name}  ({kind}, {labeled:,} of {total:,} labeled)"
    lines = [line.format(**row) + (" archived" if row["archived"] else "") for row in rows]
    show(rows, as_json, "\n".join(lines) or "There are no projects yet. Import one: python -m app import --help")


@app.command()
def check(project: Project, as_json: Json = False) -> None:
    """Compare the files of a project with their stored hashes; mark missing and changed files."""
    from dataclasses import asdict

    from storage.media.checks import verify_items

    with open_store() as store, progress_bar("Checking") as report:
        done = verify_items(store, find_project(store, project).id, report)
    found = f"{done.missing:,} missing, {done.changed:,} changed, {done.repaired:,} restored"
    show(asdict(done), as_json, f"{count(done.checked, 'file')} checked: {found}.")


@app.command()
def watch(  # noqa: PLR0913 (one parameter for each option)
    project: Project,
    folder: Annotated[
        Path | None, typer.Argument(help="Folder for new files; default: print the state of the watch.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after this many files; default: run until Ctrl-C.")] = None,
    labels: Annotated[
        Literal["given", "hidden", "ignore"], typer.Option(help="How to use the names of subfolders as labels.")
    ] = "ignore",
    buffer: Annotated[int, typer.Option(help="Candidate pool size: rounds pick from at most this many items.")] = 2_000,
    windows: Annotated[
        float | None,
        typer.Option(help="Cut sounds into windows of this many seconds; 0: do not cut; default: no change."),
    ] = None,
    hop: options.Hop = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop watching; imported items stay.")] = False,
    as_json: Json = False,
) -> int:
    """Import new files of a folder. This process imports them until Ctrl-C; after that a worker does."""
    from app.cli.commands.import_ import window_options
    from app.cli.commands.watch import follow, show_watch
    from storage.importing import watches
    from storage.importing.windows.kept import keep_windows

    with open_store() as store:
        found = find_project(store, project)
        if stop:
            watches.stop(store, found.id)
        elif folder is not None:
            if windows is not None or hop is not None:
                keep_windows(store, found.id, window_options(windows or None, hop))
            watches.start(store, found.id, folder, watches.WatchOptions(labels=labels, buffer_size=buffer, limit=limit))
            return follow(store, found.id, as_json)
        return show_watch(store, found.id, as_json)


@app.command("round")
def round_(
    project: Project,
    settings: Changes = None,
    wait: Annotated[bool, typer.Option(help="Wait until the round ends.")] = True,
    as_json: Json = False,
) -> int:
    """Request a round and follow it. If a round waits or runs already, follow that one."""
    from app.cli.commands.round import follow, request

    with open_store() as store:
        found = find_project(store, project)
        row = request(store, found.id, settings or ())
        if wait:
            return follow(store, found.id, row.id, as_json)
        show({"round": row.number, "id": row.id, "status": row.status}, as_json, f"Round {row.number} is {row.status}.")
    return 0


@app.command()
def settings(
    project: Project,
    changes: Changes = None,
    unset: Annotated[
        list[str] | None, typer.Option(help="Reset a setting to the preset, or media to derived values; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show or change what the model sees and how it learns, in all future rounds of a project."""
    from app.cli.commands.settings import change_and_show

    with open_store() as store:
        change_and_show(store, find_project(store, project), changes or (), unset or (), as_json)


@app.command()
def simulate(  # noqa: PLR0913 (one parameter for each option)
    strategy: Annotated[list[str], typer.Option(help="A strategy; repeatable.")],
    out: Annotated[Path, typer.Option(help="Folder for results.json, tables and curves; run again to resume.")],
    data: Annotated[Path | None, typer.Argument(help="Labeled data with a test split: folder, zip, manifest.")] = None,
    project: Annotated[str | None, typer.Option(help="Instead of data: a project with hidden labels.")] = None,
    start: Annotated[int, typer.Option(help="Number of first labels, at least one per class if possible.")] = 10,
    batch: Annotated[int, typer.Option(help="Number of labels that each round adds.")] = 10,
    rounds: Annotated[int, typer.Option(help="Number of rounds after the first model; 0 trains once.")] = 6,
    seeds: Annotated[int, typer.Option(help="Number of repetitions with different first labels.")] = 3,
    preset: Annotated[Preset, typer.Option()] = "auto",
    encoder: Annotated[str, typer.Option(help="An encoder by name or folder; auto, or none.")] = "auto",
    settings: Changes = None,
    wrong: Annotated[float, typer.Option(help="Share of wrong labels, to simulate labeling errors.")] = 0.0,
    rare: Annotated[str, typer.Option(help="CLASS=0.02: reduce the class to this share of the pool.")] = "",
    missing: Annotated[str, typer.Option(help="A class without first labels.")] = "",
    processes: Annotated[int | None, typer.Option(help="Number of parallel processes; default: one per core.")] = None,
    as_json: Json = False,
) -> None:
    """Compare strategies on labeled data before you label: hidden labels stand in for you."""
    from app.cli.commands.simulate import SimulationCommand, run_simulation
    from app.simulation.settings import hard_cases

    command = SimulationCommand(
        data=data, project=project, out=out, strategies=tuple(strategy), seeds=seeds, preset=preset, encoder=encoder,
        settings=tuple(settings or ()), processes=processes,
    )  # fmt: skip
    plan = {"start": start, "batch": batch, "rounds": rounds, **hard_cases(wrong, rare, missing)}
    run_simulation(command, plan, as_json)
