"""Engines: where the plan is run. `unit.py` is the work; the others say who does it and when."""
