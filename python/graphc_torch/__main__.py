"""``python -m graphc_torch``."""

import sys

from .cli import main

sys.exit(main())
