"""The only module that imports torchaudio.

torchaudio's wheel contains a compiled library (forced alignment, room impulse responses) that is linked against one
version of CUDA. With a CPU-only torch it cannot be loaded, and with a torch for another version of CUDA torchaudio
refuses it: `import torchaudio` fails in both cases. Winnow does not use the library, so a stub replaces
`torchaudio._extension` for every build of torch. A torchaudio that was imported before is not changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def _refuse_alignment(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a function that needs the compiled library with one that raises a clear error."""

    def refused(*args: object, **kwargs: object) -> None:
        raise RuntimeError(
            f"{function.__name__} needs torchaudio's compiled library, which Winnow does not load. "
            "Import torchaudio before Winnow to use it."
        )

    return refused


def stand_in_for_extension() -> ModuleType:
    """A module with the names that torchaudio reads from `torchaudio._extension`, all reporting "not available"."""
    module = ModuleType("torchaudio._extension")
    flags = ("_IS_TORCHAUDIO_EXT_AVAILABLE", "_IS_ALIGN_AVAILABLE", "_IS_RIR_AVAILABLE")
    module.__dict__.update(dict.fromkeys(flags, False))
    module.__dict__.update(fail_if_no_align=_refuse_alignment, _check_cuda_version=lambda: None)
    return module


if "torchaudio" not in sys.modules:
    sys.modules.setdefault("torchaudio._extension", stand_in_for_extension())

import torchaudio  # noqa: E402

functional = torchaudio.functional
transforms = torchaudio.transforms
