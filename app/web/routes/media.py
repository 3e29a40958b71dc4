"""The media route: `/api/media/{project}/{item}/{sha256}/{part}`.

An address contains the item id and the full hash of the item's bytes, so one clip is never served for another, and
responses can be cached. A session is required. An item of another project, another hash and an unknown part are "not
found". Content types come from an allow-list, and a response can neither run a script nor be interpreted as another
type. Drawings are made in limited child processes (`app.views.previews.pool`); nothing is decoded in this process.

part    file               the bytes as imported, with Range
        spectrogram.png    (audio)  the drawing of `app.views.previews.drawing`
        sound.flac         (audio)  the clip as FLAC, for formats that browsers do not play
        sound.json         (audio)  duration, waveform peaks, marks of the frequency axis
        picture.png        (image)  upright, at most 1600 pixels wide or high
        notes.json         (image)  sentences on content of the file that is not shown, such as further frames
        thumb.png          (both)   small, for tiles; `/api/preview/{project}/{item}` sends it, too
        model.png          (both)   the network's input under the project's media settings
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from app.rounds import media_settings
from app.views.previews import drawing as previews
from app.views.previews.pool import WINDOW_PART
from app.web import resources
from app.web.routes.byte_ranges import ranged
from app.web.routes.media_endpoints import HEADERS, media_endpoint, not_found
from core.config import MediaConfig, to_json
from core.errors import WinnowError
from storage.labeling.item_rows import ItemRow
from storage.media.checks import updating_condition
from storage.media.contents import RecordingFile
from storage.media.types import EXTENSIONS, NOT_PLAYED, media_kind
from storage.media.windows import cut_plain
from storage.projects.projects import get_project

PARTS = {
    "audio": ("file", "spectrogram.png", "sound.flac", "sound.json", "thumb.png", "model.png"),
    "image": ("file", "picture.png", "thumb.png", "model.png", "notes.json"),
}


def media_path(item: ItemRow, part: str) -> str:
    """The address of a part of an item."""
    return f"/api/media/{item.project_id}/{item.id}/{item.sha256}/{part}"


def sound_path(item: ItemRow) -> str:
    """The address of the sound to play: the file itself, or FLAC if browsers cannot play its format."""
    return media_path(item, "sound.flac" if item.media_type in NOT_PLAYED else "file")


def picture_path(item: ItemRow) -> str:
    """The address of the picture to show: the spectrogram of a clip, or the picture itself."""
    return media_path(item, "spectrogram.png" if media_kind(item.media_type) == "audio" else "picture.png")


def model_path(item: ItemRow, media: MediaConfig) -> str:
    """The address of the network's input for an item. It depends on the media settings."""
    return f"{media_path(item, 'model.png')}?settings={_settings_hash(to_json(media))}"


def media_routes() -> list[Route]:
    return [
        Route("/api/media/{project:int}/{item:int}/{sha256}/{part}", media_endpoint(serve), methods=["GET", "HEAD"]),
        Route("/api/preview/{project:int}/{item:int}", media_endpoint(preview), methods=["GET"]),
    ]


def preview(request: Request, item: ItemRow, annotator: int) -> Response:
    """The thumbnail of an item, addressed only by its id, for points of the map."""
    return RedirectResponse(media_path(item, "thumb.png"), status_code=302, headers={"Cache-Control": "no-store"})


def serve(request: Request, item: ItemRow, annotator: int) -> Response:
    """Answer a media request. An unchanged ETag gets 304."""
    sha256, part = request.path_params["sha256"], request.path_params["part"]
    kind = media_kind(item.media_type)
    if item.sha256 != sha256 or item.media_type not in EXTENSIONS or part not in PARTS[kind]:
        return not_found()
    drawn = part
    if part == "model.png":
        drawn = f"{previews.MODEL_PART}{to_json(_media(item.project_id))}"
    tag = f'"{item.sha256}-{_short(drawn)}-{previews.VERSION}"'
    if tag in [given.strip() for given in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers={**HEADERS, "ETag": tag})
    content = right_content(item)
    if part != "file":
        return _drawn(item, drawn, tag, request)
    return _sent(item, content, request, {**HEADERS, "ETag": tag})


def file_response(item: ItemRow, request: Request) -> Response:
    """The bytes of an item as imported, with Range support. Raises NotFound if they are missing or changed."""
    return _sent(item, right_content(item), request, {**HEADERS, "ETag": f'"{item.sha256}"', "Vary": "Authorization"})


def _sent(item: ItemRow, content: Path | bytes, request: Request, headers: dict[str, str]) -> Response:
    if item.recording_sha256 is not None:
        return ranged(window_sound(item), request.headers, item.media_type, headers)
    if isinstance(content, Path):
        return FileResponse(content, media_type=item.media_type, headers=headers)
    return ranged(content, request.headers, item.media_type, headers)


def right_content(item: ItemRow) -> Path | bytes:
    """The file with the item's bytes, or the bytes themselves if they are in a pack. For a window, this is its
    recording. The content is compared with the hash once per process and state of the file, and the item is marked as
    missing, changed or restored."""
    store = resources.store()
    with updating_condition(store, item.project_id, item.id, item.condition):
        if item.recording_sha256 is not None:
            path = store.media.verified(item.recording_sha256, item.link_path)
            return path if path is not None else store.media.read(item.recording_sha256)
        path = store.media.locate(item.sha256, item.link_path)
        if path is None:
            return store.media.read(item.sha256)
        status = path.stat()
        _unchanged(item.sha256, item.link_path, status.st_mtime_ns, status.st_size)
    return path


@lru_cache(maxsize=4096)
def _unchanged(sha256: str, link_path: str | None, mtime_ns: int, size: int) -> None:
    """Compare the bytes of a file with their hash. The result is cached for each state of the file."""
    resources.store().media.check(sha256, link_path)


def picture_notes(item: ItemRow) -> list[str]:
    """Sentences on how the shown picture differs from its file. Empty if the file cannot be read."""
    try:
        return [str(sentence) for sentence in json.loads(_draw(item, "notes.json"))]
    except (WinnowError, OSError):
        return []


def _drawn(item: ItemRow, part: str, tag: str, request: Request) -> Response:
    data = _draw(item, part)
    headers = {**HEADERS, "ETag": tag}
    if part == "sound.flac":
        return ranged(data, request.headers, "audio/flac", headers)
    media_type = "application/json" if part.endswith(".json") else "image/png"
    return Response(data, media_type=media_type, headers=headers)


def _draw(item: ItemRow, part: str) -> bytes:
    def draw() -> bytes:
        if item.recording_sha256 is not None:
            return draw_window(item, part, _frames(item))
        data = resources.store().media.read(item.sha256, item.link_path)
        return resources.preview_pool().draw(data, media_kind(item.media_type), part, item.sha256)

    return previews.kept(resources.picture_folder(), f"{item.sha256}-{_short(part)}", draw)


def window_sound(item: ItemRow, frames: tuple[int, int] | None = None) -> bytes:
    """A window, or other frames of its recording, as a WAV file. Uncompressed samples are copied in this process;
    others are decoded in a child process and cached."""
    content, span = right_content(item), frames or _frames(item)
    if isinstance(content, Path):
        with RecordingFile(content) as data:
            found = cut_plain(data, *span)
    else:
        found = cut_plain(content, *span)
    if found is not None:
        return found
    name = f"{item.recording_sha256}-{span[0]}-{span[1]}-{WINDOW_PART}"
    return previews.kept(resources.picture_folder(), name, lambda: draw_window(item, WINDOW_PART, span))


def draw_window(item: ItemRow, part: str, frames: tuple[int, int]) -> bytes:
    """Draw a part for some frames of a window's recording, in a child process."""
    content = right_content(item)
    path, data = (str(content), b"") if isinstance(content, Path) else ("", content)
    name = f"{item.recording_sha256}-{frames[0]}-{frames[1]}"
    return resources.preview_pool().draw(data, "audio", part, name, (path, *frames))


def _frames(item: ItemRow) -> tuple[int, int]:
    assert item.first_frame is not None and item.last_frame is not None
    return item.first_frame, item.last_frame


def _media(project_id: int) -> MediaConfig:
    store = resources.store()
    return media_settings.of_project(store, get_project(store, project_id)).config


def _short(part: str) -> str:
    """The name of a part in file names and ETags, with settings replaced by their hash."""
    name, _, settings = part.partition(" ")
    return f"{name}-{_settings_hash(settings)}" if settings else name


def _settings_hash(settings: str) -> str:
    return hashlib.sha256(settings.encode()).hexdigest()[:16]
