"""Commands that manage projects: delete, duplicate, test items, history, disk use, clean."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from app.cli.options import Json
from app.cli.output import print_note, progress_bar, show
from app.cli.projects import find_project, open_store
from app.views.text import count

Project = Annotated[str, typer.Argument(help="Name or id of the project.")]
Items = Annotated[list[int], typer.Argument(help="Ids of items.")]


def delete(
    project: Annotated[str | None, typer.Argument(help="Name or id of the project.")] = None,
    item: Annotated[list[int] | None, typer.Option(help="Delete this item only; repeatable.")] = None,
    recording: Annotated[
        str | None, typer.Option(help="Delete the windows of this recording only: its name, or the start of its hash.")
    ] = None,
    confirm: Annotated[
        str | None, typer.Option(help="The project's exact name. Without it nothing is deleted.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Finish deletions that were interrupted.")] = False,
    as_json: Json = False,
) -> int:
    """Permanently delete a project or items. Without --confirm, print what would be deleted and what would be kept."""
    from core.config import require
    from storage.projects.deletion import plan_deletion, request_deletion, run_deletion, unfinished_deletions
    from storage.projects.recordings import find_recording, windows_of

    with open_store() as store:
        if resume:
            rows = unfinished_deletions(store)
        else:
            require(project is not None, "Name the project to delete, or use --resume.")
            found = find_project(store, str(project))
            if recording is not None:
                chosen = find_recording(store, found.id, recording)
                item = [*(item or ()), *(one.item_id for one in windows_of(store, found.id, chosen.sha256))]
            plan = plan_deletion(store, found.id, item)
            print_note(plan.sentence())
            if confirm is None:
                show(asdict(plan), as_json, f"Nothing was deleted. To delete, add: --confirm {found.name!r}")
                return 0
            rows = [request_deletion(store, found.id, confirm, item)]
        with progress_bar("Deleting") as report:
            done = [run_deletion(store, row.id, report) for row in rows]
    result = [{"project": row.project_name, "items": row.counts.get("items", 0)} for row in done]
    lines = [f"Deleted {count(row['items'], 'item')} of {row['project']!r}." for row in result]
    show(result, as_json, "\n".join(lines) or "There is no interrupted deletion.")
    return 0


def duplicate(
    project: Project, name: Annotated[str, typer.Argument(help="Name of the new project.")], as_json: Json = False
) -> None:
    """Create a project with the classes, settings and guidelines of another one, without items."""
    from storage.projects.setups import duplicate_setup

    with open_store() as store:
        made = duplicate_setup(store, find_project(store, project).id, name)
    show({"id": made.id, "name": made.name}, as_json, f"Created the project {made.name!r}.")


def test_items(
    project: Project,
    items: Items,
    back: Annotated[bool, typer.Option("--back", help="Return test items to the pool.")] = False,
    as_json: Json = False,
) -> None:
    """Move items to the test items, which measure accuracy and are never trained on, or back."""
    from storage.labeling.held_out import move_to_pool, move_to_test

    with open_store() as store:
        done = (move_to_pool if back else move_to_test)(store, find_project(store, project).id, items)
    for warning in done.warnings:
        print_note(warning)
    show(asdict(done), as_json, f"{count(done.moved, 'item')} moved; already there: {done.unchanged:,}.")


def measure_(  # noqa: PLR0913 (one parameter for each option)
    project: Project,
    draw: Annotated[int | None, typer.Option(help="Draw this many test items from the pool first.")] = None,
    width: Annotated[
        float | None, typer.Option(help="Draw as many as needed for an interval of this many points on each side.")
    ] = None,
    labels: Annotated[int, typer.Option(help="Use at most this many items with labels given in random order.")] = 0,
    by: Annotated[
        Literal["auto", "groups", "shares"],
        typer.Option(help="Draw whole groups, a share of every group, or (auto) whole groups if there are enough."),
    ] = "auto",
    target: Annotated[float, typer.Option(help="Estimate the labels for this accuracy, in percent.")] = 95.0,
    as_json: Json = False,
) -> None:
    """Measure the accuracy on test items that the project has drawn. --draw and --width draw new ones first."""
    from app.views import measuring_words as words
    from app.views.measuring import as_dict, measure, needed_items
    from core.config import require
    from storage.labeling.test_sets import draw_test_set

    require(draw is None or width is None, "Use --draw or --width, not both.")
    require(width is None or 0 < width < 50, f"--width is {width}; use points above 0 and below 50.")
    require(0 < target < 100, f"--target is {target}; use a percentage above 0 and below 100.")
    with open_store() as store:
        found = find_project(store, project)
        number = draw if width is None else needed_items(width / 100)
        if number is not None:
            made = draw_test_set(store, found.id, number, n_labels=labels, by=by)
            print_note(words.draw_sentence(made.draw))
        seen = measure(store, found.id)
    if seen is None:
        show({}, as_json, "No test items have been drawn yet. Use --width 5 for an interval of 5 points on each side.")
        return
    forecast = seen.forecast(target / 100)
    lines = [words.progress_sentence(seen)]
    for row in seen.rounds:
        mark = "" if row.inductive else " (before the draw)"
        lines.append(f"Round {row.number}, {count(row.n_labeled, 'label')}: {words.percent(row.accuracy)}{mark}")
    lines += [f"  {name}: {words.percent(share)}" for name, share in seen.per_class]
    lines += [*words.about_rounds(seen), words.forecast_sentence(forecast, seen.n_labeled)] if seen.rounds else []
    show(as_dict(seen, forecast), as_json, "\n".join(lines))


def history(
    project: Project, item: Annotated[int, typer.Argument(help="Id of the item.")], as_json: Json = False
) -> None:
    """Print all events of an item, oldest first."""
    from storage.labeling.pool import Pool
    from storage.projects.annotators import list_annotators
    from storage.projects.classes import list_classes

    with open_store() as store:
        pool = Pool(store, find_project(store, project).id)
        pool.item(item)
        people = {row.id: row.name for row in list_annotators(store, include_removed=True)}
        names = {row.id: row.name for row in list_classes(store, pool.project_id, include_inactive=True)}
        rows = [
            {
                "at": event.at.isoformat(),
                "annotator": people[event.annotator_id],
                "kind": event.kind,
                "class": names.get(event.class_id) if event.class_id is not None else None,
                "note": event.note,
                "uuid": event.uuid,
                "undoes": event.undoes,
            }
            for event in pool.history(item)
        ]
    line = "{at:.19}  {annotator}  {kind}  {what}"
    lines = [line.format(**row, what=row["class"] or row["note"]) for row in rows]
    show(rows, as_json, "\n".join(lines) or "This item has no events.")


def disk(as_json: Json = False) -> None:
    """Print the disk use of each project."""
    from storage.projects.disk_use import disk_use
    from storage.projects.projects import list_projects

    with open_store() as store:
        rows = [
            {"id": row.id, "name": row.name} | asdict(disk_use(store, row.id))
            for row in list_projects(store, include_archived=True)
        ]
    line = "{id:>4}  {name}  media {media_bytes:,} bytes (shared {shared_bytes:,}), arrays {artifact_bytes:,} bytes"
    show(rows, as_json, "\n".join(line.format(**row) for row in rows) or "There are no projects yet.")


def clean(
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only print what would be removed.")] = False,
    as_json: Json = False,
) -> None:
    """Remove caches and files that nothing refers to. Labels, items and results are kept."""
    from storage.media.cleaning import find_removable, remove

    with open_store() as store:
        found = find_removable(store)
        removed = remove(store, found) if yes else 0
    rows = [{"kind": one.kind, "path": str(one.path), "n_bytes": one.n_bytes} for one in found]
    total = sum(one.n_bytes for one in found)
    lines = [f"{row['kind']:>8}  {row['n_bytes']:>14,}  {row['path']}" for row in rows]
    end = f"Removed {removed:,} bytes." if yes else f"{total:,} bytes can be removed. Nothing was changed; add --yes."
    show({"found": rows, "n_bytes": total, "removed": removed}, as_json, "\n".join([*lines, end]))


def register(app: typer.Typer) -> None:
    for function in (delete, duplicate, history, disk, clean):
        app.command()(function)
    app.command("test-items")(test_items)
    app.command("measure")(measure_)
