"""A course in tree speculative decoding: short lessons, each bound to a step of a recorded trace.

    lessons/*.md ─ markdown.py ─► lesson.py ─ tasks.py ─► page.py ─► the app's Learn tab, or one HTML file

A lesson is a Markdown file: docs/lessons.md says how to write one. learn.js and its parts show it.
"""
