"""The built-in encoders by name, for lists and choices. Light: `core.encoders.recipes` makes them."""

from __future__ import annotations

from core.types import MediaKind

BUILT_IN: dict[str, tuple[MediaKind, str]] = {
    "efficientnet-lite0": ("image", "EfficientNet-lite0"),
}


def default_for(kind: MediaKind) -> str | None:
    """The built-in encoder for this kind of media."""
    return next((name for name, (of, _) in BUILT_IN.items() if of == kind), None)
