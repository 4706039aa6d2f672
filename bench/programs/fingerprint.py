"""Prints the fingerprint of the kernel in activation.py. Needs Triton, and no GPU."""

from __future__ import annotations

from activation import leaky_kernel

import kcache

if __name__ == "__main__":
    print(kcache.fingerprint(leaky_kernel).digest.short)
