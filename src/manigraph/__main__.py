"""`python -m manigraph`."""

import sys

from manigraph.cli.main import main

sys.exit(main())
