"""A confusion matrix as a PNG, drawn with Pillow because the process that exports a model has no browser."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

TEXT, MUTED, PAPER = (30, 33, 36), (92, 100, 112), (255, 255, 255)
LOW, HIGH = (241, 239, 233), (168, 84, 10)
MOST_NUMBERS = 30  # up to this number of classes, each cell shows its count
MARGIN = 16


def confusion_picture(counts: Sequence[Sequence[int]], names: Sequence[str]) -> bytes:
    """Rows: the label; columns: the prediction; shade: the share of the row; number: the count."""
    n = len(names)
    cell = 44 if n <= MOST_NUMBERS else max(4, 1_320 // n)
    font = ImageFont.load_default(size=13)
    shown = [_shortened(name) for name in names] if cell >= 16 else [""] * n
    left = MARGIN + 24 + max(int(font.getlength(name)) for name in shown)
    image = Image.new("RGB", (left + n * cell + MARGIN, left + n * cell + MARGIN), PAPER)
    pen = ImageDraw.Draw(image)
    for i, row in enumerate(counts):
        total = max(sum(row), 1)
        for j, count in enumerate(row):
            x, y, share = left + j * cell, left + i * cell, count / total
            pen.rectangle([x + 1, y + 1, x + cell - 1, y + cell - 1], fill=_shade(share))
            if cell >= 30 and count:
                color = PAPER if share > 0.5 else TEXT
                pen.text((x + cell / 2, y + cell / 2), f"{count:,}", fill=color, font=font, anchor="mm")
        pen.text((left - 8, left + (i + 0.5) * cell), shown[i], fill=TEXT, font=font, anchor="rm")
    _column_names(image, shown, left, cell, font)
    pen.text((MARGIN, MARGIN), "rows: label", fill=MUTED, font=font)
    pen.text((MARGIN, MARGIN + 16), "columns: prediction", fill=MUTED, font=font)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _column_names(
    image: Image.Image, names: Sequence[str], left: int, cell: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> None:
    """Draw the class names vertically above the columns."""
    for j, name in enumerate(names):
        strip = Image.new("RGB", (left - 8, cell), PAPER)
        ImageDraw.Draw(strip).text((0, cell / 2), name, fill=TEXT, font=font, anchor="lm")
        length = max(1, min(left - 8, int(font.getlength(name)) + 2))
        turned = strip.crop((0, 0, length, cell)).rotate(90, expand=True)
        image.paste(turned, (left + j * cell, left - 8 - length))


def _shortened(name: str, limit: int = 24) -> str:
    plain = "".join(letter if letter.isprintable() else "?" for letter in name)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def _shade(share: float) -> tuple[int, int, int]:
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(LOW, HIGH, strict=True))
    return red, green, blue
