"""«python -m annotated» è il comando «annotated»."""

import sys

from annotated.cli import main

sys.exit(main())
