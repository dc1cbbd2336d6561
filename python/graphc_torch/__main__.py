"""``python -m graphc_torch``."""

from .cli import entry

entry()
