"""What the store promises when things break: full disks, damage, power loss, kills. `python -m tests.faults.run`."""
