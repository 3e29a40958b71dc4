"""The one place that imports torchaudio.

torchaudio's wheel carries a compiled library (forced alignment, room impulse responses) that is linked against CUDA.
With a CPU-only torch it cannot be loaded and `import torchaudio` fails. Winnow does not use it, so with a
CPU-only torch a stub replaces `torchaudio._extension`; with a CUDA torch nothing is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


def _refuse_alignment(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a function that needs the compiled library by one that raises a clear error."""

    def refused(*args: object, **kwargs: object) -> None:
        raise RuntimeError(
            f"{function.__name__} needs torchaudio's compiled library, which does not load beside a CPU-only torch. "
            "Install a CUDA build of torch to use it."
        )

    return refused


def stand_in_for_extension() -> ModuleType:
    """A module with the names that torchaudio reads from `torchaudio._extension`, all reporting "not available"."""
    module = ModuleType("torchaudio._extension")
    flags = ("_IS_TORCHAUDIO_EXT_AVAILABLE", "_IS_ALIGN_AVAILABLE", "_IS_RIR_AVAILABLE")
    module.__dict__.update(dict.fromkeys(flags, False))
    module.__dict__.update(fail_if_no_align=_refuse_alignment, _check_cuda_version=lambda: None)
    return module


if torch.version.cuda is None and "torchaudio" not in sys.modules:
    sys.modules.setdefault("torchaudio._extension", stand_in_for_extension())

import torchaudio  # noqa: E402

functional = torchaudio.functional
transforms = torchaudio.transforms
