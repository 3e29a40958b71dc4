"""The names of the built-in encoders, for lists and choices. `core.encoders.recipes` builds the encoders."""

from __future__ import annotations

from core.types import MediaKind

BUILT_IN: dict[str, tuple[MediaKind, str]] = {
    "efficientnet-lite0": ("image", "EfficientNet-lite0"),
}


def default_for(kind: MediaKind) -> str | None:
    """The built-in encoder for this kind of media."""
    return next((name for name, (of, _) in BUILT_IN.items() if of == kind), None)
