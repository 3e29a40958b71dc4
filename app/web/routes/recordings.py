"""The route for the recording of a window: `/api/recordings/{project}/{item}/{sha256}/{part}`.

part    strip.json     the length of the recording, the position of the window, labeled spans and predictions
        context.json   the window with the seconds before and after it: length, peaks, and the start and end of the
                       window as fractions of the length
        context.png    its spectrogram
        context.wav    its sound

Access, headers and errors are those of `app.web.routes.media_endpoints`. In a blind project, the strip shows only the
annotator's own labels. Predictions are shown only if the project always shows suggestions, and never for the window
itself.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.views.predictions import newest_predictions
from app.views.previews import drawing as previews
from app.web import resources
from app.web.routes.byte_ranges import ranged
from app.web.routes.media import draw_window, right_content, window_sound
from app.web.routes.media_endpoints import HEADERS, media_endpoint, not_found
from storage.exporting.span_tables import LabeledSpan, merged
from storage.labeling.item_rows import ItemRow
from storage.labeling.labeled_items import own_classes
from storage.projects import class_rows, classes
from storage.projects.projects import get_project
from storage.projects.recordings import RecordingRow, WindowState, get_recording, windows_of

CONTEXT_SECONDS = 5.0  # before and after a window
COLUMNS = 600  # positions on the strip at which predictions are shown
PARTS = ("strip.json", "context.json", "context.png", "context.wav")
CHANGING = {**HEADERS, "Cache-Control": "private, no-store"}  # the strip changes with every label


def recording_path(item: ItemRow) -> str | None:
    """The address of a window's recording, without the part. None for items that are not windows."""
    if item.recording_sha256 is None:
        return None
    return f"/api/recordings/{item.project_id}/{item.id}/{item.sha256}"


def recording_routes() -> list[Route]:
    path = "/api/recordings/{project:int}/{item:int}/{sha256}/{part}"
    return [Route(path, media_endpoint(serve), methods=["GET", "HEAD"])]


def serve(request: Request, item: ItemRow, annotator: int) -> Response:
    sha256, part = request.path_params["sha256"], request.path_params["part"]
    if item.sha256 != sha256 or item.recording_sha256 is None or part not in PARTS:
        return not_found()
    recording = get_recording(resources.store(), item.project_id, item.recording_sha256)
    if part == "strip.json":
        return JSONResponse(strip(item, recording, annotator), headers=CHANGING)
    return _context(item, recording, part, request)


def context_frames(item: ItemRow, recording: RecordingRow) -> tuple[int, int]:
    """(first, last) frame of the window with its context, within the recording."""
    assert item.first_frame is not None and item.last_frame is not None
    margin = round(CONTEXT_SECONDS * recording.sample_rate)
    return max(0, item.first_frame - margin), min(recording.n_frames - 1, item.last_frame + margin)


def _context(item: ItemRow, recording: RecordingRow, part: str, request: Request) -> Response:
    frames = context_frames(item, recording)
    headers = {**HEADERS, "ETag": f'"{item.sha256}-{part}-{previews.VERSION}"'}
    if part == "context.wav":
        return ranged(window_sound(item, frames), request.headers, "audio/wav", headers)
    right_content(item)
    name = f"{recording.sha256}-{frames[0]}-{frames[1]}"
    wanted = "spectrogram.png" if part == "context.png" else "sound.json"
    data = previews.kept(resources.picture_folder(), f"{name}-{wanted}", lambda: draw_window(item, wanted, frames))
    if part == "context.png":
        return Response(data, media_type="image/png", headers=headers)
    assert item.first_frame is not None and item.last_frame is not None
    n_frames = frames[1] - frames[0] + 1
    shares = {"start": (item.first_frame - frames[0]) / n_frames, "end": (item.last_frame + 1 - frames[0]) / n_frames}
    return JSONResponse(json.loads(data) | shares, headers=headers)


def strip(item: ItemRow, recording: RecordingRow, annotator: int) -> dict[str, Any]:
    """The recording with its windows, for one annotator."""
    store = resources.store()
    project = get_project(store, item.project_id)
    windows = windows_of(store, item.project_id, recording.sha256)
    known = classes.list_classes(store, item.project_id, include_inactive=True)
    given = {one.item_id: one.class_id for one in windows if not one.held_out}
    if project.settings.is_blind:
        own = own_classes(store, item.project_id, annotator, [one.item_id for one in windows])
        given = {item_id: own.get(item_id) for item_id in given}
    if item.waits_for_second_look:
        given[item.id] = None
    rate, order = recording.sample_rate, [one.item_id for one in windows]
    colors, counts_as = {row.id: row for row in known}, class_rows.counts_as(known)
    spans = [
        LabeledSpan(*_place(one, rate), str(counts_as[label]))
        for one in windows
        if (label := given.get(one.item_id)) is not None
    ]
    shown = project.settings.suggestions == "show" and not project.settings.is_blind
    predicted = _predicted(item, recording, windows, known) if shown else []
    here = next(one for one in windows if one.item_id == item.id)
    start, end = _place(here, rate)
    return {
        "seconds": recording.seconds,
        "start": start,
        "end": end,
        "number": order.index(item.id) + 1,
        "of": len(order),
        "labels": [_shown(span, colors) for span in merged(spans)],
        "predictions": [_shown(span, colors) for span in merged(predicted)],
    }


def _place(window: WindowState, rate: int) -> tuple[float, float]:
    return (window.first_frame or 0) / rate, ((window.last_frame or 0) + 1) / rate


def _predicted(
    item: ItemRow, recording: RecordingRow, windows: list[WindowState], known: list[class_rows.ClassRow]
) -> list[LabeledSpan]:
    """The most probable class of windows without a label, at up to COLUMNS positions."""
    found = newest_predictions(resources.store(), item.project_id)
    if found is None:
        return []
    waiting = [one for one in windows if one.class_id is None and not one.held_out and one.item_id != item.id]
    every = max(1, -(-len(waiting) // COLUMNS))
    spans = []
    for one in waiting[::every]:
        best = found.most_probable(one.item_id, known, 1)
        if best and best[0].probability * len(found.column_classes) >= 1.001:  # uniform: no model yet
            spans.append(LabeledSpan(*_place(one, recording.sample_rate), str(best[0].class_id), best[0].probability))
    return spans


def _shown(span: LabeledSpan, known: dict[int, class_rows.ClassRow]) -> dict[str, Any]:
    row = known.get(int(span.label))
    values = {
        "start": span.start,
        "end": span.end,
        "name": row.name if row else "",
        "color": row.color if row else None,
    }
    return values | ({"confidence": round(span.confidence, 3)} if span.confidence is not None else {})
