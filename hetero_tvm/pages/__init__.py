"""Pages for people: self-contained HTML with drawings, light and dark, from plain values."""
