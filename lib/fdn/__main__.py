"""``python -m fdn`` is ``fdn``."""

from __future__ import annotations

import sys

from fdn.cli import main

if __name__ == "__main__":
    sys.exit(main())
