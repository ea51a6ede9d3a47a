"""``python -m tests.campaign.graphs``."""

import sys

from tests.campaign.graphs.command import main

sys.exit(main())
