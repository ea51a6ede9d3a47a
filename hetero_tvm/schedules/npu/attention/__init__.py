"""The design space of attention: ``space`` (the door), ``tiles`` (what fits, what it costs), ``walk`` (which
tile comes when), ``masks``, ``kernel`` (the loops)."""
