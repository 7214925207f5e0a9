import sys

from ddviz.cli import main

sys.exit(main())
