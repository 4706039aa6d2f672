"""Kernels of public packages under mechanical edits: which edits change a key, and which must not.

`python -m tests.corpus.run liger_kernel fla` copies each package, edits the copy in one way
at a time, imports it in a process of its own and asks for the key of every kernel. `make
corpus` installs the pinned packages and runs that.
"""
