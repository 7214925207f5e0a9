"""`python -m ddviz.cli` is `ddviz`."""

import sys

from ddviz.cli import main

sys.exit(main())
