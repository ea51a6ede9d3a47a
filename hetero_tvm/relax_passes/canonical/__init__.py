"""Rules that bring equal graphs to one form, before any fusion looks at them."""
