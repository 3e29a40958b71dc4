"""Embeddings in over the API: matched to items, refused with a sentence, with the role of an editor."""

from __future__ import annotations

import io

import pandas as pd

from storage.labeling.pool import Pool
from tests.app import sample_store
from tests.app.web.api.callers import api_app, caller
from tests.app.web.api.test_predictions import finish, held  # noqa: F401 (fixture)


def upload(frame: pd.DataFrame, name: str) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + name.encode() + b"\r\n",
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="e.parquet"\r\n\r\n',
        buffer.getvalue() + b"\r\n--x--\r\n",
    ]
    return b"".join(parts), "multipart/form-data; boundary=x"


def test_vectors_of_a_program_become_an_encoder(page_store, held):  # noqa: F811
    project = sample_store.audio_project(page_store, n=6)
    rows = Pool(page_store, project.id).items()
    frame = pd.DataFrame({"sha256": [row.sha256 for row in rows[:5]], "embedding": [[1.0, float(k)] for k in range(5)]})
    app, path = api_app(), f"/projects/{project.id}/embeddings"
    body, kind = upload(frame, "my-network")
    assert caller(app, page_store, "annotator", "Ann")("POST", path, body, content_type=kind).status == 403 and not held
    call = caller(app, page_store, "editor", "Ed")
    assert call("POST", path, body, content_type=kind).status == 202
    result = finish(page_store, held[0])
    assert (result["name"], result["items"], result["of"], result["dimension"]) == ("my-network", 5, 6, 2)
    assert result["n_missing"] == 1 and result["missing"] == [rows[5].name]
    assert (page_store.home / "encoders" / "my-network").is_dir()
