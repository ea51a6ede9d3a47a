"""The design space of attention: ``space`` (the door), ``tiles`` (candidates and their cost), ``walk`` (the
order of tiles), ``masks``, ``kernel`` (the loops)."""
