"""Files of records, which are replaced whole: whoever is interrupted leaves them as they were."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace(file: Path, text: str) -> None:
    """Give ``file`` the contents ``text`` and its present rights, or leave it as it is."""
    made = tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}", delete=False)
    try:
        with made:
            made.write(text)
        os.chmod(made.name, file.stat().st_mode)
        os.replace(made.name, file)
    except BaseException:
        Path(made.name).unlink(missing_ok=True)
        raise
