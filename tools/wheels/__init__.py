"""Build wheels for every Python, processor and C library that RbFly supports, and test them.

`python -m tools.wheels all`, or `make wheels`, does everything. The other commands do one step of
it, also for one wheel only, so that hosted workflows can run a job for each.
"""
