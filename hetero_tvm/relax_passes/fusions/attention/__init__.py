"""Attention: projections, rotary embedding, masks, scores, the whole."""
