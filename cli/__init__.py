"""The command line of kcache. It works on the store alone and imports neither torch nor Triton."""
