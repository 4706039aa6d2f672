"""Torch's own tests of its caches, run beside kcache; none of their text is kept here."""
