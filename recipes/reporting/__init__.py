"""From run directories to progress tables and reports.

``runs`` reads, ``methods`` names, ``baselines`` pairs, ``statistics`` and ``inference`` estimate
and test, ``comparisons`` and ``study`` put these together, ``tables``, ``pictures`` and ``page``
show it; ``progress`` looks at work in progress.
"""
