"""Engines write traces. base.py is the seam; each engine lives in its own module or folder beside it."""
