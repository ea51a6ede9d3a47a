"""``python -m tests.campaign.blocks``."""

import sys

from tests.campaign.blocks.command import main

sys.exit(main())
