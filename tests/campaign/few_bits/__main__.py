"""``python -m tests.campaign.few_bits``."""

import sys

from tests.campaign.few_bits.command import main

sys.exit(main())
