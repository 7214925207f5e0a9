"""Checks on what was recorded. The doctor (doctor.py) reads a trace and says which rules it breaks."""
