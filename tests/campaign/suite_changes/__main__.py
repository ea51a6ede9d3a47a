"""``python -m tests.campaign.suite_changes``."""

import sys

from tests.campaign.suite_changes.command import main

sys.exit(main())
